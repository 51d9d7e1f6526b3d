"""The digest of what a proof is about: a quirk's declaration, and the code of its scenarios and patches.

It is that of the definitions, wherever they stand: it stays the same when one moves into another file, and when docstrings,
annotations, imports, titles, reasons, references, version ranges, fingerprints of patch targets or examples change. What a
definition names is followed within its own top-level package. The worker and the kit are none of it: their own tests run them
on every change.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quirks_core.base.json_values import sha256
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.encoding import encode
from quirks_core.declaration.quirk import Quirk
from quirks_core.source.vllm_source import INSTALLED

#: Raised by hand when the meaning of a scenario changes with the kit: all paired runs are then made anew.
KIT = 1
_DIGITS = 12
#: The parts of a declaration that change no run, because the quirk is forced or disabled there.
_CHANGE_NO_RUN = ("affected", "cost", "examples", "flag", "kind", "references", "severity", "title")
#: The parts of an adjustment that change no run: words for people, and what lets the patch stay on a release.
_CHANGE_NO_ADJUSTMENT = ("expects", "message", "reason", "remedy")
#: Packages whose names are known by themselves, whichever module they come from.
_OURS = ("quirks_core", "worker")


def code_digest(quirk: Quirk) -> str:
    """Returns the digest of everything of a quirk that its evidence depends on."""
    own = _package(quirk.location.module)
    declared = {name: part for name, part in encode(quirk).items() if name not in _CHANGE_NO_RUN}
    declared["evidence"] = encode(quirk.probes)  # a scenario may be named or found
    for adjustment in declared["adjustments"]:
        for name in _CHANGE_NO_ADJUSTMENT:
            adjustment.pop(name, None)
    runs = [run.scenario for run in quirk.paired_runs]
    patches = [item.source for item in quirk.adjustments if isinstance(item, Patch)]
    code = definitions([*runs, *patches, *_functions(declared)])
    parts = [KIT if runs else 0, _without_modules(declared, own), sorted(set(map(_dump, code)))]
    return sha256(parts)[:_DIGITS]


def _functions(value: Any) -> Iterator[str]:
    """The functions, as ``module:name``, that are values of a declaration."""
    if isinstance(value, Mapping):
        if "$function" in value:
            yield value["$function"]
        value = list(value.values())
    for part in value if isinstance(value, list) else ():
        yield from _functions(part)


def _without_modules(value: Any, own: str) -> Any:
    """Leaves out the modules of a distribution's own definitions, the texts of functions, and what is not set."""
    if isinstance(value, Mapping):
        kept = {name: _without_modules(part, own) for name, part in value.items() if name != "sha256"}
        return {name: part for name, part in kept.items() if part not in (None, "", [], {})}
    if isinstance(value, list):
        return [_without_modules(part, own) for part in value]
    is_own = isinstance(value, str) and ":" in value and value.partition(":")[0].partition(".")[0] == own
    return value.partition(":")[2] if is_own else value


def definitions(targets: Iterable[str]) -> Iterator[ast.AST]:
    """Yields the definitions ``module:name``, and all that they name in turn within their top-level package."""
    waiting, seen = set(targets), set[str]()
    while waiting:
        target = waiting.pop()
        seen.add(target)
        module, _, name = target.partition(":")
        node = INSTALLED.statement(target) if name else INSTALLED.parsed(module)
        if node is not None:
            essence = _Essence(module, node)
            yield essence.tree
            waiting |= essence.named - seen
        elif (imported := INSTALLED.imported_from(module, name)) and _package(imported[0]) == _package(module):
            waiting |= {_target(".".join(filter(None, imported)))} - seen


def _package(module: str) -> str:
    return module.partition(".")[0]


def _dump(node: ast.AST) -> str:
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()


class _Essence(ast.NodeTransformer):
    """A definition by what it does: no docstrings, annotations or imports; an imported name as where it comes from calls it.

    Attributes:
        tree: The definition.
        named: What it names of its own top-level package, as ``module:name``.
    """

    def __init__(self, module: str, node: ast.AST) -> None:
        self._module, self._package = module, _package(module)
        self.named = set[str]()
        self._imports = _imports(module, INSTALLED.parsed(module)) | _imports(module, node)
        self.tree = self.visit(copy.deepcopy(node))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visits the parts of a node, its docstring, annotations and imports left out."""
        for name in {"annotation", "returns"} & set(node._fields):
            setattr(node, name, None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [part for part in body if not isinstance(part, ast.Import | ast.ImportFrom)]
        super().generic_visit(node)
        for name in [name for name, value in ast.iter_fields(node) if value == []]:
            delattr(node, name)  # a later Python has fields that an earlier one has not, such as type_params
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replaces an imported name by its own; notes one of the module."""
        if node.id in self._imports:
            return self._replaced(self._imports[node.id], node)
        self.named.add(f"{self._module}:{node.id}")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replaces an attribute of an imported name, at any depth."""
        parts, owner = [node.attr], node.value
        while isinstance(owner, ast.Attribute):
            parts, owner = [owner.attr, *parts], owner.value
        if isinstance(owner, ast.Name) and owner.id in self._imports:
            return self._replaced(".".join([self._imports[owner.id], *parts]), node)
        return self.generic_visit(node)

    def _replaced(self, dotted: str, node: ast.Name | ast.Attribute) -> ast.Name:
        package = _package(dotted)
        if package == self._package:
            self.named.add(_target(dotted))
        if package == self._package or package in _OURS:
            module = _module_of(dotted)
            dotted = dotted[len(module) + 1 :] or module.rpartition(".")[2]
        return ast.Name(dotted, node.ctx)


def _imports(module: str, node: ast.AST | None) -> dict[str, str]:
    """The names that a module, or a definition in it, imports, each with the dotted name of what it is."""
    found: dict[str, str] = {}
    waiting = list(ast.iter_child_nodes(node)) if node is not None else []
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Import):
            names = [(item.asname, item.name) if item.asname else (item.name.partition(".")[0],) * 2 for item in part.names]
            found |= dict(names)
        elif isinstance(part, ast.ImportFrom):
            above = module.split(".")[: -part.level] if part.level else []
            origin = ".".join([*above, *filter(None, [part.module])])
            found |= {item.asname or item.name: f"{origin}.{item.name}" for item in part.names}
        elif not (isinstance(node, ast.Module) and isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)):
            waiting += ast.iter_child_nodes(part)
    return found


def _module_of(dotted: str) -> str:
    """The longest beginning of a dotted name that is a module."""
    module = dotted
    while "." in module and INSTALLED.module_source(module) is None:
        module = module.rpartition(".")[0]
    return module


def _target(dotted: str) -> str:
    """The definition ``module:name`` that a dotted name leads to, or the module."""
    module = _module_of(dotted)
    name = dotted[len(module) + 1 :].partition(".")[0]
    return f"{module}:{name}" if name else module
