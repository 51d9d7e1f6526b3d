"""The model on two releases: whether its architecture is registered, and under which class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from quirks_core.reporting.finding import Finding
from quirks_core.source.source_tree import Definition
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.finding import Level, Section
from quirks_core.upgrade.release import OnRelease, Release

_REGISTRY = "vllm.model_executor.models.registry"
_MODELS = "vllm.model_executor.models"
_BY_TRANSFORMERS = "vLLM falls back on its Transformers backend, where transformers has the model in a form that it can take"


def model_changes(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields what changes for the model of a run."""
    facts = after.context.model
    if not facts.architectures:
        message = "config.json names no architecture, so its class cannot be looked up"
        yield Section.MODEL.finding(Level.UNKNOWN, facts.name, message)
    unread = [side.release for side in (after, before) if not any(_tables(side.release.source))]
    for name in facts.architectures:
        if unread:
            yield Section.MODEL.finding(Level.UNKNOWN, name, f"the registry of {unread[0].label} cannot be read")
            continue
        old, new = _registered(before.release, name), _registered(after.release, name)
        if not new:
            yield _unregistered(name, old, before, after)
        elif not old:
            message = f"{after.release.label} is the first of the two to register it, as {new}"
            yield Section.MODEL.finding(Level.NOTE, name, message)
        elif old != new:
            yield Section.MODEL.finding(Level.NOTE, name, f"its class was {old}, and is {new}")


# ---- the registry


def _registered(release: Release, architecture: str) -> str:
    """Where the class of an architecture is defined, which the registered module may import; empty if it is not registered."""
    for table in _tables(release.source):
        match table.get(architecture):
            case ast.Tuple(elts=[ast.Constant(value=str(module)), ast.Constant(value=str(name))]):
                home = module if module.startswith("vllm.") else f"{_MODELS}.{module}"
                defined = release.source.resolve(f"{home}.{name}")
                return f"{defined.module}:{defined.path}" if isinstance(defined, Definition) else f"{home}:{name}"
    return ""


def _tables(source: VllmSource) -> Iterator[dict[str, ast.expr]]:
    """The dictionaries of the registry, with texts as keys."""
    tree = source.parsed(_REGISTRY)
    for node in tree.body if tree else ():
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            yield {key.value: item for key, item in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def _unregistered(name: str, old: str, before: OnRelease, after: OnRelease) -> Finding:
    if after.context.value("engine.model_impl") == "transformers":
        return Section.MODEL.finding(
            Level.NOTE, name, f"{after.release.label} does not register it; engine.model_impl=transformers needs no class"
        )
    gone = f"{after.release.label} no longer registers it; it was {old}"
    message = gone if old else f"neither {before.release.label} nor {after.release.label} registers it"
    return Section.MODEL.finding(Level.STOP, name, f"{message}; {_BY_TRANSFORMERS}")
