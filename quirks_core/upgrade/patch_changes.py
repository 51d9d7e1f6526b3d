"""Monkey-patches of vLLM that another package makes, held against two releases: which of them still do their work there."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from quirks_core.base.errors import UsageError
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.source.source_tree import Definition, Missing
from quirks_core.source.vllm_source import INSTALLED, VllmSource
from quirks_core.upgrade.finding import MOST_LINES, Comparison, Level, Section, changed_lines, gravest_first
from quirks_core.upgrade.monkey_patches import Condition, Function, MonkeyPatch, read_patches
from quirks_core.upgrade.release import Release

#: Folders of a package that patch nothing in a run.
_LEFT_OUT = {"tests", "test", "site-packages", "node_modules"}
_COUNTED = {Level.STOP: "cannot work", Level.UNKNOWN: "to be read"}
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef
#: The level, the message and the lines of a finding.
_Found = tuple[Level, str, tuple[str, ...]]


class PatchReport(Comparison):
    """What a release means for the patches of a package; its findings are on the targets that are not `unchanged`.

    Attributes:
        path: The package or file.
        patches: Number of patches that it makes.
        unchanged: Targets that are on both releases the same.
    """

    path: str
    patches: int
    unchanged: tuple[str, ...]

    def page(self) -> Page:
        """Returns what has to be looked at, the gravest first, and what has not."""
        counts = [(len(self.of(level)), text) for level, text in _COUNTED.items()]
        parts = [f"{count} {text}" for count, text in counts if count]
        if kept := len(self.unchanged):
            parts.append("1 target is as before" if kept == 1 else f"{kept} targets are as before")
        found = [*gravest_first(self.findings), *(Finding("as before", "", target) for target in self.unchanged)]
        return Page(
            head=f"{self.sides}: {self.patches} patches of vLLM in {self.path}",
            parts=[("", found)],
            verdict=Finding(self.verdict, "", f": {', '.join(parts)}"),
            notes=self.notes,
            most=MOST_LINES,
        )


def check_patches(path: str, before: Release, after: Release) -> PatchReport:
    """Holds the patches of a file, a folder or an installed package against a release. None of its code runs.

    Raises:
        UsageError: There is no such package, or nothing in it patches vLLM.
    """
    patches, unread = _patches_in(path)
    if not patches and not unread:
        raise UsageError(f"{path}: no patch of vLLM was found in it; name the package or the file that makes them")
    targets = ((patch, _target(before, patch), _target(after, patch)) for patch in patches)
    rows = [(patch, list(_changes(patch, before, old, after, new))) for patch, old, new in targets if _is_vllms(old, new)]
    return PatchReport(
        before=before, after=after, path=path, patches=len({patch.place for patch, _ in rows}),
        unchanged=tuple(dict.fromkeys(patch.targets[0] for patch, found in rows if not found)),
        findings=(*unread, *(finding for _, found in rows for finding in found)),
    )  # fmt: skip


# ---- the package


def _patches_in(path: str) -> tuple[list[MonkeyPatch], list[Finding]]:
    root, found, unread = _root(path), [], []
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    for file in files:
        name = file.relative_to(root).as_posix() if file != root else file.name
        if file != root and any(part in _LEFT_OUT or part.startswith(".") for part in Path(name).parts):
            continue
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
            found += read_patches(text, name) if "vllm" in text else []
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            message = f"cannot be read as Python: {type(error).__name__}: {error}"
            unread.append(Section.PATCHES.finding(Level.UNKNOWN, name, message))
    return found, unread


def _root(path: str) -> Path:
    if (root := Path(path).expanduser()).exists():
        return root
    package, *parts = path.split(".")
    for folder in INSTALLED.places(package):
        for candidate in (folder.joinpath(*parts), folder.joinpath(*parts).with_suffix(".py")):
            if candidate.exists():
                return candidate
    raise UsageError(f"{path}: there is no such file, folder or installed package")


# ---- the comparison


def _target(release: Release, patch: MonkeyPatch) -> Definition | Missing:
    """What a patch replaces there: the first of its targets that is there."""
    found = [release.source.resolve(name) for name in patch.targets]
    return next((one for one in found if isinstance(one, Definition)), found[0])


def _is_vllms(old: Definition | Missing, new: Definition | Missing) -> bool:
    """Whether a patch replaces something of vLLM: not a mark on a function."""
    missing = [one for one in (old, new) if isinstance(one, Missing)]
    return len(missing) < 2 or not any(one.owner and isinstance(one.owner.node, _DEFINITIONS) for one in missing)


def _changes(
    patch: MonkeyPatch, before: Release, old: Definition | Missing, after: Release, new: Definition | Missing
) -> Iterator[Finding]:
    """What is to be known of one patch."""
    if isinstance(new, Missing):
        found = [_gone(patch, before, old, after, new)]
    elif isinstance(old, Missing):
        message = f"{after.label} is the first of the two that has it ({_place(new)}), and the patch replaces it"
        found = [(Level.UNKNOWN, message, ()), _uncalled(before, after, new)]
    else:
        found = [_changed(patch, before, old, after, new), _uncalled(before, after, new)]
    for level, message, lines in filter(None, found):
        if Condition.VERSION in patch.condition and level is Level.STOP:
            level, message = Level.UNKNOWN, f"{message}; it stands under a condition on vLLM's version"
        yield Section.PATCHES.finding(level, patch.targets[0], f"{patch.place} ({patch.way}): {message}", lines)


def _gone(patch: MonkeyPatch, before: Release, old: Definition | Missing, after: Release, new: Missing) -> _Found | None:
    name = patch.targets[0].rpartition(".")[2]
    if isinstance(old, Missing) and new.owner is not None and patch.way in ("assignment", "setattr"):
        text = after.source.module_source(new.owner.module) or ""
        if (patch.function is None and name.startswith("_")) or re.search(rf"\b{re.escape(name)}\b", text):
            return None  # a mark of its own, or an attribute that instances have
        return Level.UNKNOWN, f"neither {before.label} nor {after.label} defines it", ()
    message = f"{after.label}: {new.message}"
    message += f" ({before.label} has it)" if isinstance(old, Definition) else f" (nor has {before.label})"
    if Condition.GUARD in patch.condition:
        return Level.UNKNOWN, f"{message}; the code goes on without the patch", ()
    return Level.STOP, message, ()


def _changed(patch: MonkeyPatch, before: Release, old: Definition, after: Release, new: Definition) -> _Found | None:
    if old.node is None or new.node is None or _code(old.node) == _code(new.node):
        return None
    level, parts = Level.UNKNOWN, [f"{after.label} has other source ({_place(new)})"]
    if isinstance(old.node, _DEFINITIONS) and isinstance(new.node, _DEFINITIONS):
        was, now = (f"({_code(node.args)})" for node in (old.node, new.node))
        parts += [f"its signature was {was}, and is {now}"] if was != now else []
        if patch.function is not None:
            came, went, fails = _unfit(patch.function, old.node.args, new.node.args)
            parts += [f"what replaces it does not take {', '.join(came)}"] if came else []
            parts += [f"what replaces it wants {', '.join(went)}, which is gone"] if went else []
            level = Level.STOP if fails else level
    elif type(old.node) is not type(new.node):
        parts.append(f"it was {_kind(old.node)}, and is {_kind(new.node)}")
        level = Level.STOP
    sides = ((before, old), (after, new))
    one, other = (side.source.attribute_source(f"{found.module}:{found.path}") for side, found in sides)
    return level, "; ".join(parts), changed_lines(one, other)


def _uncalled(before: Release, after: Release, new: Definition) -> _Found | None:
    name = new.path.rpartition(".")[2]
    if not isinstance(new.node, _DEFINITIONS) or name.startswith("__") or _is_used(after.source, name):
        return None
    also = "" if _is_used(before.source, name) else f", nor in {before.label}"
    message = f"nothing in {after.label} calls it{also}"
    if name.startswith("_"):
        return Level.STOP, f"{message}: the patch does nothing", ()
    return Level.UNKNOWN, f"{message}; other code may", ()


@lru_cache(maxsize=2)
def _texts(source: VllmSource) -> list[str]:
    return [file.read_text(encoding="utf-8", errors="replace") for file in source.package_files("vllm")]


@lru_cache(maxsize=1024)
def _is_used(source: VllmSource, name: str) -> bool:
    """Whether a name occurs in the code of a release other than where it is defined; an occurrence in a text counts."""
    pattern = re.compile(rf"^[^#\n]*(?<!def )(?<!class )\b{re.escape(name)}\b", re.MULTILINE)
    return any(name in text and pattern.search(text) for text in _texts(source))


def _code(node: ast.AST) -> str:
    """Code without comments, layout, docstrings and the annotations of functions."""
    bare = copy.deepcopy(node)
    for inner in ast.walk(bare):
        if isinstance(inner, ast.arg):
            inner.annotation = None
        if isinstance(inner, _DEFINITIONS):
            inner.returns = None
        if isinstance(inner, _DEFINITIONS | ast.ClassDef) and ast.get_docstring(inner) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return ast.unparse(bare)


def _unfit(function: Function, old: ast.arguments, new: ast.arguments) -> tuple[list[str], list[str], bool]:
    """The parameters that came and a replacement does not take, those that went and it wants, and whether calls fail."""
    here, was, now = (_parameters(one) for one in (function.args, old, new))
    takes_more = function.args.kwarg is not None
    came = [name for name in now if name not in was and name not in here and not takes_more]
    went = [name for name, is_required in here.items() if name in was and name not in now and is_required]
    return came, went, bool(went) or any(now[name] for name in came)


def _parameters(found: ast.arguments) -> dict[str, bool]:
    """The parameters by name, each with whether it has no default."""
    positional = [*found.posonlyargs, *found.args]
    first = len(positional) - len(found.defaults)
    rows = {one.arg: number < first for number, one in enumerate(positional)}
    return rows | {one.arg: default is None for one, default in zip(found.kwonlyargs, found.kw_defaults, strict=True)}


def _kind(node: ast.stmt) -> str:
    names = {ast.FunctionDef: "a function", ast.AsyncFunctionDef: "a coroutine", ast.ClassDef: "a class"}
    return names.get(type(node), "a value")


def _place(found: Definition) -> str:
    return f"{found.module}:{found.node.lineno}" if found.node is not None else found.module
