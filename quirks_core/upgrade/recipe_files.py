"""What recipes set, each with its place: variables of vLLM, and options of its server.

A recipe is a script, a Dockerfile, a page of Markdown with blocks of code, or YAML: a manifest, a compose file, a table of
arguments. Nothing runs; shell variables are not expanded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

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


@dataclass(frozen=True, slots=True)
class Mention:
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
