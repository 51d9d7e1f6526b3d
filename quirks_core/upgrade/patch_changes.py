"""Monkey-patches of vLLM that another package makes, held against two releases: which of them still do their work there."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from quirks_core.base.errors import UsageError
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.source.source_tree import Definition, Missing
from quirks_core.source.vllm_source import INSTALLED, VllmSource
from quirks_core.upgrade.finding import MOST_LINES, Comparison, Level, Section, gravest_first
from quirks_core.upgrade.monkey_patches import Function, MonkeyPatch, read_patches
from quirks_core.upgrade.release import Release

#: Folders of a package that patch nothing in a run.
_LEFT_OUT = {"tests", "test", "site-packages", "node_modules"}
_COUNTED = {Level.STOP: "cannot work", Level.UNKNOWN: "to be read", Level.NOTE: "noted"}


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
    comparison = _Comparison(before, after)
    patches = [patch for patch in patches if comparison.concerns_vllm(patch)]
    rows = [(patch, list(comparison.of(patch))) for patch in patches]
    return PatchReport(
        before=before.side, after=after.side, path=path, patches=len({patch.place for patch in patches}),
        unchanged=tuple(dict.fromkeys(one.targets[0] for one, found in rows if not found)),
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


@dataclass(frozen=True)
class _Comparison:
    before: Release
    after: Release

    def concerns_vllm(self, patch: MonkeyPatch) -> bool:
        """Whether a patch replaces something of vLLM: not a mark on a function."""
        old, new = self._target(self.before, patch), self._target(self.after, patch)
        if isinstance(old, Definition) or isinstance(new, Definition):
            return True
        return not any(one.owner is not None and isinstance(one.owner.node, _DEFINITIONS) for one in (old, new))

    def of(self, patch: MonkeyPatch) -> Iterator[Finding]:
        """Yields what is to be known of one patch."""
        old, new = self._target(self.before, patch), self._target(self.after, patch)
        if isinstance(new, Missing):
            yield from self._gone(patch, old, new)
            return
        if isinstance(old, Definition):
            yield from self._changed(patch, old, new)
        else:
            message = f"{self.after.label} is the first of the two that has it ({_place(new)}), and the patch replaces it"
            yield self._finding(patch, Level.UNKNOWN, message)
        yield from self._not_called(patch, new)

    def _target(self, release: Release, patch: MonkeyPatch) -> Definition | Missing:
        """What a patch replaces there: the first of its targets that is there."""
        found: list[Definition | Missing] = []
        for name in patch.targets:
            one = release.source.resolve(name)
            if patch.member and isinstance(one, Definition) and isinstance(one.node, ast.ClassDef):
                one = release.source.resolve(f"{name}.{patch.member}")
            found.append(one)
        return next((one for one in found if isinstance(one, Definition)), found[0])

    # ---- gone

    def _gone(self, patch: MonkeyPatch, old: Definition | Missing, new: Missing) -> Iterator[Finding]:
        name = patch.targets[0].rpartition(".")[2]
        if isinstance(old, Missing) and new.owner is not None and patch.way in ("assignment", "setattr"):
            text = self.after.source.module_source(new.owner.module) or ""
            if (patch.function is None and name.startswith("_")) or re.search(rf"\b{re.escape(name)}\b", text):
                return  # a mark of its own, or an attribute that instances have
            message = f"neither {self.before.label} nor {self.after.label} defines it"
            yield self._finding(patch, Level.UNKNOWN, message)
            return
        message = f"{self.after.label}: {new.message}"
        message += f" ({self.before.label} has it)" if isinstance(old, Definition) else f" (nor has {self.before.label})"
        if patch.is_guarded:
            yield self._finding(patch, Level.UNKNOWN, f"{message}; the code goes on without the patch")
        else:
            yield self._finding(patch, Level.STOP, message)

    # ---- changed

    def _changed(self, patch: MonkeyPatch, old: Definition, new: Definition) -> Iterator[Finding]:
        if old.node is None or new.node is None:
            return
        if _code(old.node) == _code(new.node):
            return
        sides = ((self.before, old), (self.after, new))
        one, other = (side.source.attribute_source(f"{found.module}:{found.path}") or "" for side, found in sides)
        lines = [*difflib.unified_diff(one.splitlines(), other.splitlines(), lineterm="", n=1)][2:]
        level, parts = Level.UNKNOWN, [f"{self.after.label} has other source ({_place(new)})"]
        if isinstance(old.node, _DEFINITIONS) and isinstance(new.node, _DEFINITIONS):
            was, now = (_signature(node) for node in (old.node, new.node))
            parts += [f"its signature was {was}, and is {now}"] if was != now else []
            if patch.function is not None:
                came, went, fails = _unfit(patch.function, old.node.args, new.node.args)
                parts += [f"what replaces it does not take {', '.join(came)}"] if came else []
                parts += [f"what replaces it wants {', '.join(went)}, which is gone"] if went else []
                level = Level.STOP if fails else level
        elif type(old.node) is not type(new.node):
            parts.append(f"it was {_kind(old.node)}, and is {_kind(new.node)}")
            level = Level.STOP
        yield self._finding(patch, level, "; ".join(parts), lines)

    # ---- never called

    def _not_called(self, patch: MonkeyPatch, new: Definition) -> Iterator[Finding]:
        name = new.path.rpartition(".")[2]
        if isinstance(new.node, _DEFINITIONS) and not name.startswith("__") and not _is_used(self.after.source, name):
            also = "" if _is_used(self.before.source, name) else f", nor in {self.before.label}"
            message = f"nothing in {self.after.label} calls it{also}"
            if name.startswith("_"):
                yield self._finding(patch, Level.STOP, f"{message}: the patch does nothing")
            else:
                yield self._finding(patch, Level.UNKNOWN, f"{message}; other code may")

    def _finding(self, patch: MonkeyPatch, level: Level, message: str, lines: Iterable[str] = ()) -> Finding:
        if patch.is_conditional and level is Level.STOP:
            level, message = Level.UNKNOWN, f"{message}; it stands under a condition on vLLM's version"
        subject = patch.targets[0] + (f".{patch.member}" if patch.member else "")
        return Section.PATCHES.finding(level, subject, f"{patch.place} ({patch.way}): {message}", lines)


_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=2)
def _texts(source: VllmSource) -> list[str]:
    return [file.read_text(encoding="utf-8", errors="replace") for file in source.package_files("vllm")]


@lru_cache(maxsize=1024)
def _is_used(source: VllmSource, name: str) -> bool:
    """Whether a name occurs in the code of a release other than where it is defined; an occurrence in a text counts."""
    pattern = re.compile(rf"^[^#\n]*(?<!def )(?<!class )\b{re.escape(name)}\b", re.MULTILINE)
    return any(name in text and pattern.search(text) for text in _texts(source))


def _code(node: ast.stmt) -> str:
    """Code without comments, layout, docstrings and the annotations of functions."""
    return ast.unparse(_without_annotations(ast.parse(ast.unparse(node))))


def _without_annotations(copy: ast.Module) -> ast.Module:
    for inner in ast.walk(copy):
        if isinstance(inner, ast.arg):
            inner.annotation = None
        if isinstance(inner, _DEFINITIONS):
            inner.returns = None
        if isinstance(inner, _DEFINITIONS | ast.ClassDef) and ast.get_docstring(inner) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return copy


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


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.unparse(_without_annotations(ast.parse(f"def f({ast.unparse(node.args)}): ...")))
    return text[len("def f") : text.rindex(":")]


def _kind(node: ast.stmt) -> str:
    names = {ast.FunctionDef: "a function", ast.AsyncFunctionDef: "a coroutine", ast.ClassDef: "a class"}
    return names.get(type(node), "a value")


def _place(found: Definition) -> str:
    return f"{found.module}:{found.node.lineno}" if found.node is not None else found.module
