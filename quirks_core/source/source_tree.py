"""The source of Python packages, read without importing them: neither torch nor a GPU is needed, and no code runs."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import textwrap
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_VLLM = "vllm"
#: Hexadecimal digits of a fingerprint: the first ones of the SHA-256 of a source text, so that no copy of it is needed.
DIGITS = 12
#: Names that lead from one to another before one is given up: imports of imports, base classes of base classes.
_DEEPEST = 12
#: Held while Python source is parsed, also around a library that parses some: where a garbage collection of one thread meets
#: another's parse, CPython 3.11 can end that with a SystemError.
parsing = threading.RLock()


def parse(source: str) -> ast.Module:
    """Parses Python source while no other thread does."""
    with parsing:
        return ast.parse(source)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a dotted name stands for; its node is None for a module."""

    module: str
    path: str = ""
    node: ast.stmt | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """What is missing of a dotted name; the owner that is there."""

    message: str
    owner: Definition | None = None


@dataclass(frozen=True)
class SourceTree:
    """The source of the installed packages; vLLM's is read from another folder if one is given, such as that of a release.

    Trees of the same folder are equal and share what was read. The caches are bounded for all trees together, so that many
    releases can be compared.

    Attributes:
        folder: The folder that holds the ``__init__.py`` of vLLM; None for the installed vLLM.
    """

    folder: Path | None = None

    @lru_cache(maxsize=512)
    def module_source(self, module: str) -> str | None:
        """Returns a module's source text, or None if its package has no such Python file."""
        package, *parts = module.split(".")
        for root in self.places(package):
            if root.suffix == ".py" and not parts:  # a single module, not a package
                return root.read_text(encoding="utf-8", errors="replace")
            if (text := _text_of(root, parts)) is not None:
                return text
        return None

    def places(self, package: str) -> list[Path]:
        """Returns the folders of a package, or the file of a single module; empty if it is not there."""
        if self.folder is not None and package == _VLLM:
            return [self.folder]
        try:
            spec = importlib.util.find_spec(package)  # a top-level name: finds, does not import
        except (ImportError, ValueError):
            return []
        if spec is None:
            return []
        folders = spec.submodule_search_locations
        return [Path(place) for place in ([spec.origin] if folders is None else folders) if place]

    @lru_cache(maxsize=192)
    def parsed(self, module: str) -> ast.Module | None:
        """Returns a module's syntax tree; None if there is no such file, or it is not this Python's."""
        source = self.module_source(module)
        try:
            return parse(source) if source is not None else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a template, or source for another version of Python
            return None

    @lru_cache(maxsize=1024)
    def attribute_source(self, target: str) -> str | None:
        """Returns the source of a function or class, its decorators included, or of a constant or field; without indentation.

        Args:
            target: ``package.module:Class.attribute``.

        Returns:
            None if the module or the attribute does not exist (an inherited or imported attribute counts as not existing).
        """
        lines = (self.module_source(target.partition(":")[0]) or "").splitlines()
        node = self.statement(target)
        if node is None:
            return None
        return textwrap.dedent("\n".join(lines[_first_line(node) - 1 : node.end_lineno]))

    def imported_from(self, module: str, name: str) -> tuple[str, str] | None:
        """Returns the module and the name that an ``import`` at a module's top takes a name from; None if there is none.

        The name is empty for a module that is imported as a whole.
        """
        node = self.parsed(module)
        for child in _children(node) if node else ():
            if isinstance(child, ast.Import | ast.ImportFrom):
                for alias in child.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        return (child.module or "", alias.name) if isinstance(child, ast.ImportFrom) else (alias.name, "")
        return None

    def statement(self, target: str) -> ast.stmt | None:
        """Returns the statement that defines an attribute; None if the module or the attribute does not exist."""
        module, _, path = target.partition(":")
        *owners, name = path.split(".")
        if name not in (self.module_source(module) or ""):  # most probes look for what is not there; parsing takes long
            return None
        node: ast.AST | None = self.parsed(module)
        for owner in owners:
            node = _definition(node, owner)
        if found := _definition(node, name):
            return found
        assignments = [child for child in _children(node) if name in _assigned(child)] if node else []
        return assignments[-1] if assignments else None

    @lru_cache(maxsize=4096)
    def resolve(self, dotted: str, depth: int = 0) -> Definition | Missing:
        """Finds what a dotted name stands for, through imports and base classes."""
        parts = dotted.split(".")
        length = next((n for n in range(len(parts), 0, -1) if self.module_source(".".join(parts[:n])) is not None), 0)
        if length == 0 or depth > _DEEPEST:
            return Missing(f"there is no module {dotted}")
        found = Definition(".".join(parts[:length]))
        for number, name in enumerate(parts[length:], length):
            inner = self._member(found, name, depth)
            if inner is None:
                missing = ".".join(parts[length : number + 1])
                is_empty = not (self.module_source(found.module) or "").strip() and "." in found.module
                if number == length and is_empty:  # only a folder: what is missing in it is a module
                    return Missing(f"there is no module {found.module}.{missing}")
                return Missing(f"{found.module} has no {missing}", found)
            found = inner
        return found

    def _member(self, owner: Definition, name: str, depth: int) -> Definition | None:
        if depth > _DEEPEST:  # a class that extends one of its own name
            return None
        target = f"{owner.module}:{owner.path}{'.' if owner.path else ''}{name}"
        if (node := self.statement(target)) is not None:
            return Definition(owner.module, target.partition(":")[2], node)
        if owner.node is None:
            origin = ".".join(filter(None, self.imported_from(owner.module, name) or ()))
            # A relative import is counted from the module or its package.
            for start in ("", f"{owner.module}.", f"{owner.module.rpartition('.')[0]}.") if origin else ():
                if isinstance(found := self.resolve(f"{start}{origin}", depth + 1), Definition):
                    return found
            if re.search(rf"[\"']{re.escape(name)}[\"']", self.module_source(owner.module) or ""):  # loaded on first use
                return Definition(owner.module, name)
            return None
        for base in owner.node.bases if isinstance(owner.node, ast.ClassDef) else ():
            parent = self.resolve(f"{owner.module}.{ast.unparse(base).partition('[')[0]}", depth + 1)
            if isinstance(parent, Definition) and parent.node is not None and (inner := self._member(parent, name, depth + 1)):
                return inner
        return None

    def search(self, module: str, pattern: str) -> bool | None:
        """Returns whether a regular expression occurs in a module's source; None if there is no such module."""
        source = self.module_source(module)
        return None if source is None else re.search(pattern, source) is not None

    def unread_by_engine(self, variables: Iterable[str]) -> tuple[str, ...] | None:
        """Returns those of the environment variables that vLLM does not read; None if there is no vLLM.

        Nearly all are declared in ``vllm/envs.py``; the rest of the package is searched only for names that are not.
        """
        declared = self.module_source("vllm.envs")
        if declared is None:
            return None
        left = {name for name in variables if f'"{name}"' not in declared}
        for file in self.package_files(_VLLM) if left else ():
            text = file.read_text(encoding="utf-8", errors="replace")
            left = {name for name in left if name not in text}
            if not left:
                break
        return tuple(sorted(left))

    def package_files(self, package: str) -> Iterator[Path]:
        """Yields the Python files of a package, in no order."""
        for root in self.places(package):
            yield from root.rglob("*.py")

    def fingerprint(self, target: str) -> str | None:
        """Returns the fingerprint of a target's source (`attribute_source`); None if it does not exist."""
        source = self.attribute_source(target)
        return None if source is None else hashlib.sha256(source.encode()).hexdigest()[:DIGITS]

    def has_owner(self, target: str) -> bool:
        """Returns whether the module or class of a target exists, so that an attribute can be added to it."""
        owner, dot, _ = target.rpartition(".")
        return (
            self.statement(owner) is not None
            if ":" in owner and dot
            else self.module_source(target.partition(":")[0]) is not None
        )

    def missing(self, target: str) -> str:
        """Returns which part of a target's name does not exist."""
        module, _, path = target.partition(":")
        if self.module_source(module) is None:
            return f"{target}: the installed packages have no module {module}"
        owner, dot, name = path.rpartition(".")
        if dot and self.attribute_source(f"{module}:{owner}") is None:
            return f"{target}: {module} has no {owner}"
        return f"{target}: {f'{module}:{owner}' if dot else module} has no {name} (inherited and imported names do not count)"


def _text_of(root: Path, parts: list[str]) -> str | None:
    base = Path(root, *parts)
    for candidate in (base.with_suffix(".py") if parts else base / "__init__.py", base / "__init__.py"):
        if candidate.is_file():
            return candidate.read_text(encoding="utf-8", errors="replace")
    return None


def _children(node: ast.AST) -> list[ast.stmt]:
    """The statements of a module or class body, looking through every branch of ``if`` and ``try``."""
    # The last definition counts. One in an `except` is the fallback of one in the `try`, so it comes first.
    statements: list[ast.stmt] = [statement for handler in getattr(node, "handlers", []) for statement in handler.body]
    for block in ("body", "orelse", "finalbody"):
        statements += getattr(node, block, [])
    found: list[ast.stmt] = []
    for statement in statements:
        found.append(statement)
        if isinstance(statement, ast.If | ast.Try):
            found += _children(statement)
    return found


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _definition(node: ast.AST | None, name: str) -> ast.stmt | None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [child for child in _children(node) if isinstance(child, kinds) and child.name == name] if node else []
    return found[-1] if found else None  # the last definition is the one that Python keeps


def _assigned(statement: ast.stmt) -> set[str]:
    """The names that an assignment gives a value, or a class field without one."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return set()
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    nodes = (node for target in targets for node in ast.walk(target))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
