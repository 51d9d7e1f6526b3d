"""What the hook and the worker take from vLLM, looked for in the source of a release; patches have fingerprints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from quirks_core.hook import vllm_functions
from quirks_core.reporting.finding import Finding
from quirks_core.source.source_tree import syntax_tree
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.archive import PACKAGE
from quirks_core.upgrade.definitions import Definition, resolve
from quirks_core.upgrade.finding import Level, Section
from quirks_core.upgrade.run import OnRelease

#: Our package that imports vLLM on every run.
_OURS = Path(__file__).resolve().parents[2] / "worker"


def seam_changes(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields the functions of vLLM that the hook or the worker rests on and that the release in question does not have.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
    """
    release = after.release
    problem = vllm_functions.problem(release.version or "of an unknown version", release.source)
    if problem is not None:
        needed = after.plan.changes or after.plan.patches
        message = f"{problem}: MODEL_QUIRKS would start the engine without quirks"
        yield Section.SEAMS.finding(Level.STOP if needed else Level.NOTE, "the hook", message)
    for place, target in _imported():
        if _is_there(before.release.source, target) and not _is_there(release.source, target):
            message = f"{place} imports {target}, which {release.label} does not have"
            yield Section.SEAMS.finding(Level.NOTE, place.partition(":")[0], message)


@lru_cache(maxsize=1)
def _imported() -> tuple[tuple[str, str], ...]:
    """What our package imports from vLLM without a plan for its absence, each with the place."""
    found = []
    for file in sorted(_OURS.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in _unguarded(syntax_tree(text)) if f"from {PACKAGE}" in text else ():
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").partition(".")[0] == PACKAGE:
                place = f"{file.relative_to(_OURS.parent)}:{node.lineno}"
                found += [(place, f"{node.module}:{alias.name}") for alias in node.names]
    return tuple(found)


def _unguarded(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those in a ``try`` or an ``if``: these know what to do where a name is missing."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Try | ast.If | ast.With):
            yield child
            yield from _unguarded(child)


def _is_there(source: VllmSource, target: str) -> bool:
    return isinstance(resolve(source, target.replace(":", ".")), Definition)
