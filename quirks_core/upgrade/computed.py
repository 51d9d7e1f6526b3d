"""Defaults that vLLM computes when an engine starts: the source says that the computation changed, not what it gives now."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.finding import Finding, Level, Section
from quirks_core.upgrade.run import OnRelease

#: Where engine arguments and configurations that were left open get their values: module, class, and names of functions.
_PLACES = (
    ("vllm.engine.arg_utils", "EngineArgs", re.compile(r"default|__post_init__|_check_feature_supported")),
    ("vllm.config.model", "ModelConfig", re.compile(r"__post_init__|is_prefix_caching_supported|is_chunked_prefill_supported")),
    ("vllm.config.vllm", "VllmConfig", re.compile(r"__post_init__|default|_post_init_|use_v2_model_runner")),
)


def computed_defaults(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields one finding with the functions that choose defaults and that changed.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
    """
    old, new = _functions(before.release.source), _functions(after.release.source)
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name, ("", 0))[0] != new.get(name, ("", 0))[0]]
    if not changed:
        return
    lines = tuple(
        f"{name} ({f'line {new[name][1]}' if name in new else 'gone'}{', new' if name not in old else ''})" for name in changed
    )
    message = (
        f"{len(changed)} functions that choose what was left open differ; which values they give cannot be told from source"
    )
    yield Finding(section=Section.ARGUMENTS, level=Level.UNKNOWN, subject="computed defaults", message=message, lines=lines)


@lru_cache(maxsize=8)
def _functions(source: VllmSource) -> dict[str, tuple[str, int]]:
    """The functions that choose defaults: their text without comments and docstrings, and their line."""
    found = {}
    for module, owner, names in _PLACES:
        node = source.statement(f"{module}:{owner}")
        for child in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(child, ast.FunctionDef) and names.search(child.name):
                found[f"{module}:{owner}.{child.name}"] = "\n".join(map(ast.unparse, _without_text(child))), child.lineno
    return found


def _without_text(function: ast.FunctionDef) -> list[ast.stmt]:
    return [
        node for node in function.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ] or function.body
