"""Reads the source of installed packages without importing them.

Probes, drift guards and the list of an engine's settings all rest on this: it needs neither torch nor a GPU, and it cannot
run anybody's code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import textwrap
from functools import lru_cache
from pathlib import Path

from quirks_core.adjustments import ABSENT

_ENV_KEY = re.compile(r'^\s+"(VLLM_[A-Z0-9_]+)"\s*:', re.MULTILINE)


@lru_cache(maxsize=256)
def module_source(module: str) -> str | None:
    """Returns a module's source text, or None if the installed package has no such Python file."""
    package, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(package)  # a top-level name: finds, does not import
    except (ImportError, ValueError):
        return None
    if spec and not parts and spec.submodule_search_locations is None:  # a module of its own, without a package
        file = Path(spec.origin or "")
        return file.read_text(encoding="utf-8") if file.suffix == ".py" else None
    for root in (spec.submodule_search_locations or ()) if spec else ():
        base = Path(root, *parts)
        for candidate in (base.with_suffix(".py") if parts else base / "__init__.py", base / "__init__.py"):
            if candidate.is_file():
                return candidate.read_text(encoding="utf-8")
    return None


def _children(node: ast.AST) -> list[ast.stmt]:
    """The statements of a module or class body, looking through every branch of ``if`` and ``try``."""
    # A definition in an `except` is the fallback of one in the `try`, so it comes first: the last one counts.
    statements: list[ast.stmt] = [statement for handler in getattr(node, "handlers", []) for statement in handler.body]
    for block in ("body", "orelse", "finalbody"):
        statements += getattr(node, block, [])
    found: list[ast.stmt] = []
    for statement in statements:
        found.append(statement)
        if isinstance(statement, ast.If | ast.Try):
            found += _children(statement)
    return found


@lru_cache(maxsize=64)
def _parsed(module: str) -> ast.Module | None:
    source = module_source(module)
    return ast.parse(source) if source is not None else None


def attribute_source(target: str) -> str | None:
    """Returns the source of a function or class, its decorators included, without indentation.

    Args:
        target: ``package.module:Class.attribute``.

    Returns:
        None if the module or the attribute does not exist (an inherited attribute counts as not existing).
    """
    module, _, path = target.partition(":")
    node: ast.AST | None = _parsed(module)
    for name in path.split("."):
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        matches = [child for child in _children(node) if isinstance(child, definitions) and child.name == name] if node else []
        node = matches[-1] if matches else None  # the last definition is the one that Python keeps
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return None
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = (module_source(module) or "").splitlines()[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines))


def fingerprint(target: str) -> str:
    """Returns the SHA-256 of a target's source text (hexadecimal), or `ABSENT` if it does not exist."""
    source = attribute_source(target)
    return ABSENT if source is None else hashlib.sha256(source.encode()).hexdigest()


def search(module: str, pattern: str) -> bool | None:
    """Tells whether a regular expression occurs in a module's source; None if there is no such module."""
    source = module_source(module)
    return None if source is None else re.search(pattern, source) is not None


def engine_environment() -> frozenset[str] | None:
    """Returns the names of the environment variables that the installed vLLM reads; None if vLLM is not installed."""
    source = module_source("vllm.envs")
    return frozenset(_ENV_KEY.findall(source)) if source is not None else None


@lru_cache(maxsize=1)
def engine_fields() -> frozenset[str] | None:
    """Returns the names of the installed vLLM's engine arguments; None if vLLM is not installed."""
    tree = _parsed("vllm.engine.arg_utils")
    if tree is None:
        return None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in ("EngineArgs", "AsyncEngineArgs")]
    return frozenset(
        statement.target.id
        for node in classes
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    )
