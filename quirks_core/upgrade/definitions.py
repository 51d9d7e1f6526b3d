"""What a dotted name stands for in the source of vLLM, through imports and base classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from quirks_core.source.vllm_source import VllmSource

_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition in a release; its node is None for a module."""

    module: str
    path: str = ""
    node: ast.stmt | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """What is missing of a dotted name; the owner that is there."""

    message: str
    owner: Definition | None = None


@lru_cache(maxsize=4096)
def resolve(source: VllmSource, dotted: str, depth: int = 0) -> Definition | Missing:
    """Finds what a dotted name stands for, through imports and base classes."""
    parts = dotted.split(".")
    length = next((n for n in range(len(parts), 0, -1) if source.module_source(".".join(parts[:n])) is not None), 0)
    if length == 0 or depth > _DEEPEST:
        return Missing(f"there is no module {dotted}")
    found = Definition(".".join(parts[:length]))
    for number, name in enumerate(parts[length:], length):
        inner = _member(source, found, name, depth)
        if inner is None:
            missing = ".".join(parts[length : number + 1])
            if number == length and _is_module_name(source, found.module):
                return Missing(f"there is no module {found.module}.{missing}")
            return Missing(f"{found.module} has no {missing}", found)
        found = inner
    return found


def _is_module_name(source: VllmSource, module: str) -> bool:
    """Whether a module is only a folder with an empty file: what is missing in it is a module."""
    return not (source.module_source(module) or "").strip() and module.count(".") > 0


def _member(source: VllmSource, owner: Definition, name: str, depth: int) -> Definition | None:
    target = f"{owner.module}:{owner.path}{'.' if owner.path else ''}{name}"
    if (node := source.statement(target)) is not None:
        return Definition(owner.module, target.partition(":")[2], node)
    if owner.node is None:
        for origin in _origins(source, owner.module, name):
            if isinstance(found := resolve(source, origin, depth + 1), Definition):
                return found
        if re.search(rf"[\"']{re.escape(name)}[\"']", source.module_source(owner.module) or ""):  # loaded on first use
            return Definition(owner.module, name)
        return None
    for base in owner.node.bases if isinstance(owner.node, ast.ClassDef) else ():
        parent = resolve(source, f"{owner.module}.{ast.unparse(base).partition('[')[0]}", depth + 1)
        if isinstance(parent, Definition) and parent.node is not None and (inner := _member(source, parent, name, depth + 1)):
            return inner
    return None


def _origins(source: VllmSource, module: str, name: str) -> Iterator[str]:
    """The dotted names that an imported name may come from: a relative import is counted from the module or its package."""
    imported = source.imported_from(module, name)
    if imported is not None:
        origin = ".".join(filter(None, imported))
        yield from (origin, f"{module}.{origin}", f"{module.rpartition('.')[0]}.{origin}")
