"""Recipes for vLLM, held against a release: which of their variables and options it does not know. Its source is read alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from quirks_core.base.errors import UsageError
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.finding import MOST_LINES, Comparison, Level, Section
from quirks_core.upgrade.recipe_files import Mention, mentions, recipes_in
from quirks_core.upgrade.release import Release

_CLOSE = 0.8


class RecipeReport(Comparison):
    """What a release does not know of recipes; each finding is on a variable or an option, with the places that set it.

    Attributes:
        path: The folder or file.
        recipes: Number of files that set a variable of vLLM or start its server.
        concerned: Those that set something that the release does not know.
    """

    path: str
    recipes: int
    concerned: tuple[str, ...]

    def page(self) -> Page:
        """Returns what the release does not know."""
        count = f"{len(self.concerned)} of {self.recipes} recipes"
        return Page(
            head=f"{self.after.name}: {count} in {self.path} set what it does not know",
            parts=[("", self.findings)] if self.findings else [],
            verdict=Finding(self.verdict, "", ""),
            notes=self.after.notes,
            most=MOST_LINES,
        )


def check_recipes(path: str, after: Release, before: Release | None = None) -> RecipeReport:
    """Holds a folder of recipes, or one, against a release, and against the one that they are for where it is known.

    Raises:
        UsageError: There is no such folder, or no recipe in it.
    """
    root = Path(path).expanduser()
    if not root.exists():
        raise UsageError(f"{path}: there is no such folder or file")
    found: dict[str, list[Mention]] = {}
    for file in recipes_in(root):
        name = file.relative_to(root).as_posix() if file != root else file.name
        for mention in sorted(mentions(file.read_text(encoding="utf-8", errors="replace"), name), key=lambda one: one.line):
            found.setdefault(mention.name, []).append(mention)
    if not found:
        raise UsageError(f"{path}: no script, Dockerfile, Markdown or YAML in it sets a variable of vLLM or starts its server")
    unknown = _unknown(after, found)
    return RecipeReport(
        before=(before or after).side, after=after.side, path=path,
        recipes=len({one.file for items in found.values() for one in items}),
        concerned=tuple(sorted({one.file for name in unknown for one in found[name]})),
        findings=tuple(_findings(found, unknown, after, before)),
    )  # fmt: skip


def _unknown(release: Release, names: Iterable[str]) -> set[str]:
    options = {name for name in names if name.startswith("--")}
    known = _options(release.source)
    unread = release.source.unread_by_engine(set(names) - options)
    if not known or unread is None:
        raise UsageError(f"the source of {release.name} has no options of a server that could be read")
    # As in argparse, the beginning of a name will do.
    return {*unread, *(option for option in options if not any(name.startswith(option) for name in known))}


def _options(source: VllmSource) -> set[str]:
    """The long names of all options of ``vllm serve``, and the contrary ones of flags."""
    options = source.options() or ()
    named = {name for option in options for name in (*option.names, *option.inverse) if name.startswith("--")}
    flags = {name for option in options if option.shape is Shape.FLAG for name in option.names}
    return named | {f"--no-{name.removeprefix('--')}" for name in flags}


def _findings(
    found: Mapping[str, list[Mention]], unknown: set[str], after: Release, before: Release | None
) -> Iterator[Finding]:
    """Options before variables, since a server that gets one does not start; of each the most frequent first."""
    known = _options(after.source)
    unknown_before = _unknown(before, unknown) if before else set()
    files = {name: len({one.file for one in found[name]}) for name in unknown}
    for name in sorted(unknown, key=lambda name: (not name.startswith("--"), -files[name], name)):
        places = tuple(dict.fromkeys(f"{one.file}:{one.line}" for one in found[name]))
        since = f" ({before.label} {'does not, either' if name in unknown_before else 'does'})" if before else ""
        where = "1 recipe sets it" if files[name] == 1 else f"{files[name]} recipes set it"
        if name.startswith("--"):
            near = get_close_matches(name, known, 1, _CLOSE)
            close = f"; did you mean {near[0]!r}?" if near else ""
            message = f"'vllm serve' of {after.label} does not take it{since}: {where}{close}"
            yield Section.ARGUMENTS.finding(Level.STOP, name, message, places)
        else:
            message = f"{after.label} does not read it{since}: {where}, without an effect"
            yield Section.VARIABLES.finding(Level.CHANGE, name, message, places)
