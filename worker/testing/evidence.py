"""What a proof depends on: recorded with it, compared later, so that evidence is run anew only where it has become stale."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from quirks_core import declaration, sources
from quirks_core.adjustments import Patch
from quirks_core.loaded import Loaded
from quirks_core.packages import installed_platform, installed_versions
from worker.testing.proof import PACKAGES, Proof

#: The modules that a scenario runs with.
_KIT = ("checkpoints", "lab", "paired", "prove", "scenario")
_DIGITS = 16


def dependencies(item: Loaded) -> dict[str, str]:
    """Returns everything that the evidence of a quirk depends on, by name: versions as they are, the rest as a digest.

    The worker is none of it: tests of its own run it on every change, and a proof that was right stays right with it.
    """
    quirk = item.quirk
    runs = [run.scenario for run in quirk.paired_runs]
    patches = [patch.source for patch in quirk.adjustments if isinstance(patch, Patch)]
    installed = installed_versions()
    found = {
        "declaration": declaration.digest(quirk)[:_DIGITS],
        "scenario": digest_of(_reached(runs)),
        "patches": digest_of(_reached(patches)),
        "kit": digest_of(_kit()) if runs else "",
        "platform": installed_platform() or "",
        **{name: installed.get(name, "") for name in PACKAGES},
    }
    return {name: text for name, text in found.items() if text}


def stale(item: Loaded, proof: Proof | None) -> str:
    """Says what has changed since a quirk was proved; empty if nothing has."""
    if proof is None:
        return "never proved"
    now = dependencies(item)
    return ", ".join(sorted(name for name in now.keys() | proof.depends.keys() if now.get(name) != proof.depends.get(name)))


def _kit() -> Iterator[ast.AST]:
    for name in _KIT:
        yield ast.parse(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8"))


def _reached(targets: Iterable[str]) -> Iterator[ast.AST]:
    """The definitions ``module:name``, and all that they name in turn, as far as it is in their own top-level package."""
    waiting, seen = sorted(set(targets)), set[str]()
    while waiting:
        target = waiting.pop(0)
        if target in seen:
            continue
        seen.add(target)
        module, _, name = target.partition(":")
        node = sources.statement(target) if name else sources.parsed(module)
        if node is not None:
            yield node
        waiting += sorted(_named(module, name, node) - seen)


def _named(module: str, name: str, node: ast.AST | None) -> set[str]:
    """What a definition names; of a name that is imported, where it comes from."""
    found: set[str] = set()
    if node is None:
        imported = sources.imported_from(module, name)
        found |= _imported(*imported) if imported else set()
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name):
            found.add(f"{module}:{part.id}")
        elif isinstance(part, ast.ImportFrom) and part.module:
            found |= set().union(*(_imported(part.module, alias.name) for alias in part.names))
        elif isinstance(part, ast.Import):
            found |= {alias.name for alias in part.names}
    return {target for target in found if target.partition(".")[0].partition(":")[0] == module.partition(".")[0]}


def _imported(module: str, name: str) -> set[str]:
    """A name of a module; it may be a module itself."""
    return {f"{module}:{name}", f"{module}.{name}"} if name else {module}


def digest_of(nodes: Iterable[ast.AST]) -> str:
    """Digests code by what it does: comments, docstrings and layout do not count. Empty if there is none."""
    dumps = [ast.dump(_without_docstrings(copy.deepcopy(node))) for node in nodes]
    return hashlib.sha256("\0".join(dumps).encode()).hexdigest()[:_DIGITS] if dumps else ""


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return tree
