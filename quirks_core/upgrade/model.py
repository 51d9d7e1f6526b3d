"""The model on two releases: whether its architecture is registered, under which class, and what changed in its file."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from quirks_core.base.text import listed
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.finding import Finding, Level, Section
from quirks_core.upgrade.release import Release
from quirks_core.upgrade.run import OnRelease

_REGISTRY = "vllm.model_executor.models.registry"
_MODELS = "vllm.model_executor.models"
#: The table of architectures that older releases had, each with the last one that did.
_PREVIOUSLY = "_PREVIOUSLY_SUPPORTED_MODELS"
#: Modules beside the models, which are none.
_HELPERS = ("adapters", "interfaces", "interfaces_base", "module_mapping", "registry", "utils", "vision")
_BY_TRANSFORMERS = "vLLM falls back on its Transformers backend, where transformers has the model in a form that it can take"
#: Lines that tell most, and how many of them are shown.
_TELLING = re.compile(
    r"register_buffer|persistent|load_weights|weight_loader|process_weights|copy_\(|sink|get_rope|rotary|rope_|Attention\(|"
    r"scaling|sliding_window|softcap|num_experts|FusedMoE|nn\.Parameter|def "
)
_MOST_LINES = 3
_LONGEST = 110
#: Characters of a cut line in front of what differs.
_BEFORE = 30
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def model_changes(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields what changes for the model of a run.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
    """
    facts = after.context.model
    if not facts.architectures:
        message = "config.json names no architecture, so its class cannot be looked up"
        yield _finding(Level.UNKNOWN, facts.name, message)
    for name in facts.architectures:
        old, new = _registered(before.release, name), _registered(after.release, name)
        if isinstance(old, str) or isinstance(new, str):
            text = new if isinstance(new, str) else old
            yield _finding(Level.UNKNOWN, name, str(text))
        elif new is None:
            yield _unregistered(name, old, before, after)
        elif old is None:
            message = f"{after.release.label} is the first of the two to register it, as {new}"
            yield _finding(Level.NOTE, name, message)
        else:
            if old != new:
                yield _finding(Level.NOTE, name, f"its class was {old}, and is {new}")
            yield from _file_changes(before.release, after.release, old, new)


# ---- the registry


@dataclass(frozen=True, slots=True)
class _Class:
    """Where a model's class is."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def _registered(release: Release, architecture: str) -> _Class | str | None:
    """The class of an architecture; None if it is not registered, a sentence if that cannot be told."""
    tables = list(_tables(release.source))
    if not tables:
        return f"the registry of {release.label} cannot be read"
    for _, table in tables:
        match table.get(architecture):
            case ast.Tuple(elts=[ast.Constant(value=str(module)), ast.Constant(value=str(name))]):
                home = module if module.startswith("vllm.") else f"{_MODELS}.{module}"
                return _home(release.source, _Class(home, name))
    return None


def _last_release(release: Release, architecture: str) -> str:
    """The last release that had an architecture, as a later one tells; empty if it does not."""
    for name, table in _tables(release.source):
        match table.get(architecture):
            case ast.Constant(value=str(version)) if name == _PREVIOUSLY:
                return version
    return ""


def _tables(source: VllmSource) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """The dictionaries of the registry by name, with texts as keys."""
    tree = source.parsed(_REGISTRY)
    for node in tree.body if tree else ():
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            pairs = zip(node.value.keys, node.value.values, strict=True)
            yield (
                ast.unparse(target),
                {key.value: item for key, item in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)},
            )


def _home(source: VllmSource, found: _Class) -> _Class:
    """The module that defines a class, where the registered one imports it."""
    for _ in range(4):
        if source.statement(str(found)) is not None:
            break
        imported = next((one for one in _imports(source, found.module) if one[0] == found.name), None)
        if imported is None:
            break
        found = _Class(imported[1], imported[2])
    return found


def _unregistered(name: str, old: _Class | str | None, before: OnRelease, after: OnRelease) -> Finding:
    if after.context.value("engine.model_impl") == "transformers":
        return _finding(
            Level.NOTE, name, f"{after.release.label} does not register it; engine.model_impl=transformers needs no class"
        )
    if old is None:
        return _finding(
            Level.STOP, name, f"neither {before.release.label} nor {after.release.label} registers it; {_BY_TRANSFORMERS}"
        )
    last = _last_release(after.release, name)
    told = f" (its registry says: supported until {last})" if last else ""
    return _finding(Level.STOP, name, f"{after.release.label} no longer registers it{told}; it was {old}; {_BY_TRANSFORMERS}")


# ---- its file


def _file_changes(before: Release, after: Release, old: _Class, new: _Class) -> Iterator[Finding]:
    """What changed in the file of a model, and in the classes that it takes from other models."""
    ours, theirs = _definitions(before.source, old), _definitions(after.source, new)
    if not theirs:
        yield _finding(Level.UNKNOWN, str(new), f"the source of {after.label} has no such class that could be read")
        return
    others: list[str] = []
    one_sided: dict[str, dict[bool, list[str]]] = {}
    for key in sorted(ours.keys() | theirs.keys(), key=lambda key: (key[0] != new.module, key)):
        was, now = ours.get(key), theirs.get(key)
        if was is not None and now is not None and was.text == now.text:
            continue
        kind = _kind(was, now)
        if kind and (was is None or now is None):
            one_sided.setdefault((now or was or _NOTHING).module, {}).setdefault(now is not None, []).append(key[1])
        elif not kind:
            others.append(f"{key[1]}{'' if was and now else ' (new)' if now else ' (gone)'}")
        else:
            yield _finding(Level.NOTE, f"{(now or was or _NOTHING).module}:{key[1]}", *_told(kind, was, now))
    for module, sides in one_sided.items():
        for is_new, names in sides.items():
            subject = f"{module}, functions that are {'new' if is_new else 'gone'}"
            yield _finding(Level.NOTE, subject, f"of loading, attention or rotary embedding: {', '.join(names)}")
    if others:
        message = f"{len(others)}: {listed(others)}"
        yield _finding(Level.NOTE, f"{new.module}, other changed functions", message)


@dataclass(frozen=True, slots=True)
class _Definition:
    """A function, or what a class holds beside its functions."""

    module: str
    owner: str
    line: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


_NOTHING = _Definition("", "", 0, "")


@lru_cache(maxsize=64)
def _definitions(source: VllmSource, registered: _Class) -> dict[tuple[str, str], _Definition]:
    """The functions of the module of a class, and of the classes that it takes from other models, without docstrings.

    The key is the module and the dotted name; of the model's own module, whose name may change, the module is empty.
    """
    told = {("", name): found for name, found in _of_module(source, registered.module, None)}
    taken: dict[str, set[str]] = {}
    for _, module, name in _imports(source, registered.module):
        if module.startswith(f"{_MODELS}.") and module.removeprefix(f"{_MODELS}.").partition(".")[0] not in _HELPERS:
            taken.setdefault(module, set()).add(name)
    for module, names in sorted(taken.items()):
        told |= {(module, name): found for name, found in _of_module(source, module, names)}
    return told


def _of_module(source: VllmSource, module: str, names: set[str] | None) -> Iterator[tuple[str, _Definition]]:
    tree = source.parsed(module)
    for node in tree.body if tree else ():
        if isinstance(node, _FUNCTIONS) and (names is None or node.name in names):
            yield node.name, _definition(module, "", node)
        if isinstance(node, ast.ClassDef) and (names is None or node.name in names):
            for child in node.body:
                if isinstance(child, _FUNCTIONS):
                    yield f"{node.name}.{child.name}", _definition(module, node.name, child)


def _definition(module: str, owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Definition:
    """A function as text that changes neither with comments nor with line breaks."""
    body = node.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1:
        body = body[1:]
    parts = [*(f"@{ast.unparse(item)}" for item in node.decorator_list)]
    parts.append(f"def {node.name}({ast.unparse(node.args)}):")
    parts += [line for item in body for line in ast.unparse(item).splitlines()]
    return _Definition(module, owner, node.lineno, "\n".join(parts))


def _kind(was: _Definition | None, now: _Definition | None) -> str:
    """What a change is about, of the things that matter to weights and logprobs; empty if it is about none of them."""
    name = (now or was or _NOTHING).text.partition("(")[0].rpartition(" ")[2]
    owner = (now or was or _NOTHING).owner
    changed = "\n".join(line for _, line in _changed(was, now))
    if "register_buffer" in changed:
        return "buffers"
    if re.search(r"process_weights_after_loading", name):
        return "what is done to loaded weights"
    if re.search(r"load_weights|weight_loader|^_?load_|expert_params_mapping|hf_to_vllm", name):
        return "loading of weights"
    if re.search(r"get_rope|rotary|rope_", changed):
        return "rotary embedding"
    if "Attention" in owner or "Attention(" in changed:
        return "attention"
    return "loading of weights" if "weight_loader" in changed else ""


def _told(kind: str, was: _Definition | None, now: _Definition | None) -> tuple[str, tuple[str, ...]]:
    """What changed in a function that both have, in a sentence, and the lines that tell most."""
    changed = list(_changed(was, now))
    plus, minus = (sum(sign == mark for sign, _ in changed) for mark in "+-")
    telling = [(sign, line.strip()) for sign, line in changed if _TELLING.search(line)] or changed
    chosen = telling[:_MOST_LINES]
    lines = list(_shown(chosen))
    if len(changed) > len(chosen):
        lines.append(f"({len(changed) - len(chosen)} more lines)")
    return f"{kind}: changed, +{plus} -{minus} (line {(now or _NOTHING).line})", tuple(lines)


def _shown(changed: list[tuple[str, str]]) -> Iterator[str]:
    """Lines, cut to a length around what differs: a long line and the one that replaces it begin with the same words."""
    for number, (sign, text) in enumerate(changed):
        beside = changed[number + 1 : number + 2] if sign == "-" else changed[max(0, number - 1) : number]
        common = next((_common(text, other) for mark, other in beside if mark != sign), 0)
        first = max(0, common - _BEFORE) if len(text) > _LONGEST else 0
        part = text[first : first + _LONGEST]
        yield f"{sign} {'…' if first else ''}{part}{'…' if first + _LONGEST < len(text) else ''}"


def _changed(was: _Definition | None, now: _Definition | None) -> Iterator[tuple[str, str]]:
    for line in difflib.ndiff((was or _NOTHING).lines, (now or _NOTHING).lines) if was and now else ():
        if line[0] in "+-" and line[2:].strip():
            yield line[0], line[2:]
    if was is None or now is None:
        for text in (now or was or _NOTHING).lines:
            yield "+" if now else "-", text


def _common(one: str, other: str) -> int:
    """The number of characters that two texts begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# ---- imports


def _imports(source: VllmSource, module: str) -> Iterator[tuple[str, str, str]]:
    """The names that a module takes from others of vLLM: the name there, the module, and the name in it."""
    tree = source.parsed(module)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom):
            for home in _absolute(module, node):
                if home.startswith("vllm") and source.module_source(home) is not None:
                    yield from ((alias.asname or alias.name, home, alias.name) for alias in node.names)
                    break


def _absolute(module: str, node: ast.ImportFrom) -> Iterator[str]:
    """The modules that a relative import may mean: that of a package is one level less far away."""
    if node.level == 0:
        yield node.module or ""
        return
    for level in (node.level, node.level - 1):
        parts = module.split(".")[: -level or None]
        yield ".".join([*parts, *([node.module] if node.module else [])])


def _finding(level: Level, subject: str, message: str, lines: tuple[str, ...] = ()) -> Finding:
    return Finding(section=Section.MODEL, level=level, subject=subject, message=message, lines=lines)
