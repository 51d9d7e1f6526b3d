"""Recipes for vLLM, held against a release: which of their variables and options it does not know. Its source is read alone.

A recipe is a script, a Dockerfile, a page of Markdown with blocks of code, or YAML: a manifest, a compose file, a table of
arguments. Nothing runs; shell variables are not expanded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import yaml

from quirks_core.base.errors import UsageError
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.finding import MOST_LINES, Comparison, Level, Section
from quirks_core.upgrade.release import Release

_NEAR = 0.8


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
        before=before or after, after=after, path=path,
        recipes=len({one.file for items in found.values() for one in items}),
        concerned=tuple(sorted({one.file for name in unknown for one in found[name]})),
        findings=tuple(_findings(found, unknown, after, before)),
    )  # fmt: skip


def _unknown(release: Release, names: Iterable[str]) -> set[str]:
    options = {name for name in names if name.startswith("--")}
    known = _known_options(release.source)
    unread = release.source.unread_by_engine(set(names) - options)
    if not known or unread is None:
        raise UsageError(f"the source of {release.name} has no options of a server that could be read")
    # As in argparse, the beginning of a name will do.
    return {*unread, *(option for option in options if not any(name.startswith(option) for name in known))}


def _known_options(source: VllmSource) -> set[str]:
    """The long names of all options of ``vllm serve``, and the contrary ones of flags."""
    return {name for option in source.options() or () for name in option.spellings if name.startswith("--")}


def _findings(
    found: Mapping[str, list[Mention]], unknown: set[str], after: Release, before: Release | None
) -> Iterator[Finding]:
    """Options before variables, since a server that gets one does not start; of each the most frequent first."""
    known = _known_options(after.source)
    unknown_before = _unknown(before, unknown) if before else set()
    files = {name: len({one.file for one in found[name]}) for name in unknown}
    for name in sorted(unknown, key=lambda name: (not name.startswith("--"), -files[name], name)):
        places = tuple(dict.fromkeys(f"{one.file}:{one.line}" for one in found[name]))
        since = f" ({before.label} {'does not, either' if name in unknown_before else 'does'})" if before else ""
        where = "1 recipe sets it" if files[name] == 1 else f"{files[name]} recipes set it"
        if name.startswith("--"):
            near = get_close_matches(name, known, 1, _NEAR)
            close = f"; did you mean {near[0]!r}?" if near else ""
            message = f"'vllm serve' of {after.label} does not take it{since}: {where}{close}"
            yield Section.ARGUMENTS.finding(Level.STOP, name, message, places)
        else:
            message = f"{after.label} does not read it{since}: {where}, without an effect"
            yield Section.VARIABLES.finding(Level.CHANGE, name, message, places)


# ---- what recipes set


_MARKDOWN, _YAML = (".md", ".mdx", ".markdown"), (".yaml", ".yml")
_SUFFIXES = (*_MARKDOWN, *_YAML, ".bash", ".dockerfile", ".env", ".sbatch", ".sh", ".slurm")
_NAMES = ("Containerfile", "Dockerfile", "Makefile")
#: Folders of what others wrote.
_LEFT_OUT = {"node_modules", "site-packages"}
_FENCE = re.compile(r"\s*(```|~~~)")
_NAME = r"VLLM_[A-Z0-9_]*[A-Z0-9]"
#: ``NAME=…``, ``NAME: …`` and ``"NAME": …``; an entry of a manifest's list; an instruction of a Dockerfile.
_VARIABLE = re.compile(rf"\b({_NAME})(?:=|[\"']?\s*:\s)|\bname:\s*[\"']?({_NAME})\b|^\s*ENV\s+({_NAME})\s")
#: What the words of a server follow: its command, its module, its image; also as a list of words.
_GAP = r"[\s\"',]+"
_SERVER = re.compile(
    rf"(?:\bvllm{_GAP}serve\b|-m{_GAP}vllm\.entrypoints\.(?:openai\.api_server|cli\.main{_GAP}serve)\b"
    r"|\bvllm/vllm-openai[^\s\"',]*)[\"',]*"
)
_OPTION = re.compile(r"--[a-z][\w-]*")
_ARGUMENTS = re.compile(r"(?:\w+_)?args|command")
_OPERATORS = "|&;<>"
#: Lines that a quoted word may span.
_LONGEST = 40
#: vLLM-Omni is another program, with options and variables of its own.
_OMNI, _OMNI_PREFIX = ("--omni", "vllm-omni"), "VLLM_OMNI_"


class Mention(NamedTuple):
    """A variable or an option that a recipe sets.

    Attributes:
        name: ``VLLM_…``, or ``--…`` with dashes, without the keys of a mapping behind it.
        file: The recipe, below the folder.
        line: Its line.
    """

    name: str
    file: str
    line: int


def recipes_in(folder: Path) -> Iterator[Path]:
    """Yields the files that may be recipes, in order; hidden folders and packages of others are left out."""
    for file in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        parts = file.relative_to(folder).parts
        if any(part in _LEFT_OUT or (part.startswith(".") and part != ".env") for part in parts) or not file.is_file():
            continue
        if file == folder or file.name.startswith(_NAMES) or Path(f"_{file.name}").suffix.lower() in _SUFFIXES:
            yield file


def mentions(text: str, file: str) -> set[Mention]:
    """Returns what a recipe sets."""
    if "vllm" not in text.lower():
        return set()
    suffix = Path(file).suffix.lower()
    lines = [*(_in_blocks(text) if suffix in _MARKDOWN else enumerate(text.splitlines(), 1))]
    lines = [(number, line) for number, line in lines if not line.lstrip().startswith("#")]
    found = {*_variables(lines), *_commands(lines), *(_arguments(text) if suffix in _YAML else ())}
    return {Mention(name, file, number) for name, number in found if f"${{{name}" not in text and f"${name}" not in text}


def _in_blocks(text: str) -> Iterator[tuple[int, str]]:
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
        elif inside:
            yield number, line


def _variables(lines: list[tuple[int, str]]) -> Iterator[tuple[str, int]]:
    for number, line in lines:
        for match in _VARIABLE.finditer(line):
            if not (name := match[match.lastindex or 0]).startswith(_OMNI_PREFIX):
                yield name, number


# ---- command lines


def _commands(lines: list[tuple[int, str]]) -> Iterator[tuple[str, int]]:
    for at, (number, line) in enumerate(lines):
        # A command begins in one line; its words may be in those below.
        for match in _SERVER.finditer(line):
            more = [(number, line[match.end() :]), *lines[at + 1 : at + _LONGEST]]
            yield from _options(_words(more), more)


def _words(lines: list[tuple[int, str]]) -> list[str]:
    """The words of a command that begins a text, up to what ends it there."""
    text = ""
    for _, line in lines:
        text += line.rstrip()
        if text.endswith("\\"):
            text = f"{text[:-1]} "
            continue
        reader = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
        reader.whitespace_split, words = True, []
        try:
            for word in reader:
                if set(word) <= set(_OPERATORS):
                    break
                words.append(word)
        except ValueError:  # a quoted word, a mapping say, goes on in the next line; a sentence that names the command ends
            if not _OPTION.search(text):
                break
            text += "\n"
            continue
        return words
    return text.split()


def _options(words: list[str], lines: list[tuple[int, str]]) -> Iterator[tuple[str, int]]:
    if any(word in _OMNI for word in words):
        return
    for word in words:
        if option := _OPTION.match(word):
            number = next((number for number, line in lines if option[0] in line), lines[0][0])
            yield option[0].replace("_", "-"), number


# ---- lists of arguments


def _arguments(text: str) -> Iterator[tuple[str, int]]:
    """The options in lists of YAML whose key says that they are arguments, of containers only those of vLLM's images."""
    if any(name in text for name in _OMNI):
        return
    try:
        documents = list(yaml.compose_all(text, yaml.SafeLoader))
    except (ValueError, RecursionError, yaml.YAMLError):  # a template
        return
    nodes = [node for node in documents if node is not None]
    for mapping in (node for node in _below(nodes) if isinstance(node, yaml.MappingNode)):
        values = {key.value: value for key, value in mapping.value if isinstance(key, yaml.ScalarNode)}
        lists = [value for key, value in values.items() if _ARGUMENTS.fullmatch(key) and isinstance(value, yaml.SequenceNode)]
        for one in (item for items in lists for item in items.value if _is_vllms(values)):
            yield from _options([_scalar(one)], [(one.start_mark.line + 1, "")])


def _is_vllms(values: Mapping[str, yaml.Node]) -> bool:
    """A container has vLLM's image, or its command starts a server; what is no container has options alone."""
    words = [_scalar(item) for name in ("command", "args") if name in values for item in _items(values[name])]
    if words and not words[0].startswith("-"):
        return _SERVER.search(" ".join(words)) is not None
    return "image" not in values or "vllm" in _scalar(values["image"])


def _below(nodes: list[yaml.Node]) -> Iterator[yaml.Node]:
    """Yields nodes and all below them, each once: an anchor can stand in many places, and below itself."""
    seen: dict[int, yaml.Node] = {}
    left = nodes[::-1]
    while left:
        if id(node := left.pop()) not in seen:
            seen[id(node)] = node
            left += _items(node)[::-1]
            yield node


def _items(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _scalar(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""
