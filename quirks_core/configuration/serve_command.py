"""Reads the command line of a vLLM server and returns the configuration that it stands for.

There are two ways. `read_serve_command` imports nothing of vLLM: the options come from its source
(`quirks_core.source.serve_options`), and are read as vLLM's parser reads them: dashes or underscores, ``--flag value`` and
``--flag=value``, ``--no-flag``, short names, unambiguous beginnings, JSON or ``--option.key value``, ``--config FILE``; the
last one of two equal options counts. Plans are made with it, because an import of vLLM takes eleven seconds of a CPU for each
new command line, and a whole plan one. `ask_for_serve_command` lets vLLM's own parser read the line, for upgrades.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, NoReturn, get_args, get_origin

from quirks_core.base.errors import UsageError, nearest, shown
from quirks_core.configuration.config import GenerationConfig, Purpose
from quirks_core.configuration.engine_run import EngineRun
from quirks_core.configuration.slots import ENGINE, problem_of_name
from quirks_core.configuration.yaml_file import lay_over, read_yaml
from quirks_core.source.engine_arguments import EngineArguments
from quirks_core.source.engine_parser import Outcome, Run, judge
from quirks_core.source.serve_options import ServeOption, Shape, members
from quirks_core.source.vllm_source import INSTALLED, VllmSource

_FORMS = "write: vllm serve MODEL …, or: python -m vllm.entrypoints.openai.api_server --model MODEL …"
#: Modules that a Python runs as a server; the first word after some of them is a command.
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry")
_COMMANDS = ("vllm.entrypoints.cli.main", "vllm")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: What comes between the dashes and the first dot of an option.
_LONG = re.compile(r"(?<=--)[^.=]*")
_LEVELS = {"0", "1", "2", "3"}
_MULTIPLES = {letter: 1000**power for power, letter in enumerate("kmgt", 1)} | {
    letter: 1024**power for power, letter in enumerate("KMGT", 1)
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
#: Options that are no engine argument of the configuration: they say which checkpoint.
_MODEL: Mapping[str, str] = {"model": "path", "revision": "revision", "tokenizer": "tokenizer"}
#: Options that make a server one rank of several, whose engine does not own all data-parallel ranks.
_RANKS = ("data_parallel_rank", "data_parallel_external_lb")
_SERVER, _TAG, _LENGTH = "server ", "model_tag", "max_model_len"


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What a command line says.

    Attributes:
        arguments: The engine arguments that were typed, the model among them, with their values; None is an explicit ``None``.
        environment: Variables that were set before the command.
        server: The options of the server alone that were typed, by their first long name.
        source: The vLLM that the options are read from.
        words: The words after ``vllm serve``.
    """

    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    server: tuple[str, ...] = ()
    source: VllmSource = INSTALLED
    words: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The checkpoint: what was typed, or vLLM's default.

        Raises:
            UsageError: Neither says one.
        """
        known = self.source.arguments.find("model")
        model = self.arguments.get("model") or (known.default if known else None)
        if not isinstance(model, str):
            raise UsageError(f"the command names no model; {_FORMS}")
        return model

    def config(self, *, purpose: Purpose = "serve", settings: Iterable[str] = ()) -> GenerationConfig:
        """Returns the configuration of the engine that the command starts.

        It is what the hook in the server's own process plans for: what was typed counts as typed, and nothing else does; what
        was left open is vLLM's choice (the weights are loaded, whatever the purpose). An engine owns its data-parallel ranks
        (``parallel.dp_strategy``), unless it is one of them.

        Args:
            purpose: What the server is for.
            settings: Texts of the form ``slot=value``, laid over it: facts of the trainer, for example.

        Raises:
            UsageError: Something in it is wrong, a value of an argument for example.
        """
        typed = {name: value for name, value in self.arguments.items() if value is not None}
        model = {"path": self.model, **{key: typed[name] for name, key in _MODEL.items() if name in typed and name != "model"}}
        engine = {name: value for name, value in typed.items() if name not in _MODEL and not problem_of_name(f"{ENGINE}{name}")}
        values: dict[str, Any] = {"purpose": purpose, "model": model, "engine": engine, "env": dict(self.environment)}
        for text in settings:
            lay_over(values, text)
        typed_slots = GenerationConfig.parse(values).typed_slots()
        values["engine"] = {"runtime": "v1", "async_engine": True, "load_format": "auto", **values["engine"]}
        if not any(engine.get(name) not in (None, False) for name in _RANKS):
            values["parallel"] = {"dp_strategy": "engine", **values.get("parallel", {})}
        return EngineRun.given(values, typed_slots)


def read_serve_command(words: Sequence[str], source: VllmSource = INSTALLED) -> ServeCommand:
    """Reads a command line.

    Args:
        words: The words, as a shell would pass them: ``["vllm", "serve", "MODEL", "-tp", "2"]``. Assignments of variables may
            precede them.
        source: The vLLM that the command is for.

    Raises:
        UsageError: It starts no server of vLLM's, it has an option that vLLM does not have or a value that the option does not
            take, or no vLLM is installed whose options could be read.
    """
    environment, rest = _assignments(words)
    typed, with_tag = _after_program(rest)
    options = source.options()
    if options is None:
        raise UsageError(
            "no vLLM is installed here, so its options are not known; describe the run by --model and --set instead"
        )
    parser = _parser(options, source.arguments, with_tag=with_tag)
    found, unknown = parser.parse_known_args(_joined(_spelled(_with_file(typed, options))))
    if unknown:
        raise UsageError(_unknown(unknown, options))
    arguments = {name: value for name, value in vars(found).items() if not name.startswith(_SERVER)}
    if tag := arguments.pop(_TAG, None):
        arguments["model"] = tag
    server = tuple(sorted(name.removeprefix(_SERVER) for name in vars(found) if name.startswith(_SERVER)))
    return ServeCommand(arguments, environment, server, source, tuple(typed))


def ask_for_serve_command(
    words: Sequence[str], source: VllmSource, *, notify: Callable[[str], None] = lambda _: None
) -> ServeCommand:
    """Reads a command line with the parser of the vLLM that it is for, whose code runs (`quirks_core.source.engine_parser`).

    Where that vLLM cannot be imported here, its source is read instead.

    Args:
        words: As for `read_serve_command`.
        source: The vLLM that the command is for.
        notify: Called before its code runs.

    Raises:
        UsageError: It starts no server of vLLM's, or that vLLM's parser refuses it.
    """
    environment, rest = _assignments(words)
    typed, _ = _after_program(rest)
    run = Run(words=tuple(typed), environment=environment, model=_model_among(typed))
    answer = judge(source, [run], notify=notify)
    if not answer.lines:
        return read_serve_command(words, source)
    found = answer.lines[0]
    if found.outcome is Outcome.REFUSED and found.stage == "options":
        raise UsageError(f"vllm serve: {found.message}")
    arguments = {name: value for name, value in found.typed.items() if name in (source.arguments.names() or ())}
    if tag := found.typed.get(_TAG):
        arguments["model"] = tag
    server = tuple(sorted(f"--{name.replace('_', '-')}" for name in found.typed if name not in {*arguments, _TAG, "config"}))
    return ServeCommand(arguments, environment, server, source, tuple(typed))


def _model_among(words: Iterable[str]) -> dict[str, Any] | None:
    """The ``config.json`` of the first word that is a model's folder: the answer then serves for the comparison as well."""
    for word in words:
        with suppress(OSError, ValueError):
            found = json.loads((Path(word) / "config.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
    return None


# ---- which program


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    environment, rest = {}, list(words)
    if rest[:1] == ["env"]:
        del rest[0]
    while rest and (assigned := _ASSIGNMENT.fullmatch(rest[0])):
        environment[assigned[1]] = assigned[2]
        del rest[0]
    return environment, rest


def _after_program(words: list[str]) -> tuple[list[str], bool]:
    """Returns the words after the program, and whether the model may be one of them without an option."""
    program = PurePath(words[0]).name if words else ""
    if program == "vllm" and words[1:2] == ["serve"]:
        return words[2:], True
    if re.fullmatch(r"python[\d.]*", program) and "-m" in words:
        module, *rest = [*words[words.index("-m") + 1 :], ""]
        if module in _SERVERS:
            return rest[:-1], False
        if module in _COMMANDS and rest[:1] == ["serve"]:
            return rest[1:-1], True
    plain = itertools.takewhile(lambda word: not word.startswith("--"), words)  # an option may hold a key
    raise UsageError(f"{shown(' '.join(plain), 100)} starts no server of vLLM's; {_FORMS}")


# ---- words as vLLM's parser prepares them


def _with_file(words: list[str], options: Sequence[ServeOption]) -> list[str]:
    """Puts the options of ``--config FILE`` before the others, which are stronger."""
    if any(word.startswith("--config=") for word in words):
        raise UsageError("vLLM does not read --config=FILE; write --config FILE, with a space")
    if (count := words.count("--config")) == 0:
        return words
    index = words.index("--config")
    if count > 1 or index == len(words) - 1:
        raise UsageError("--config names one file, once")
    first = index if not words[0].startswith("-") else 0  # vLLM keeps a model before them
    flags = {name for option in options if option.shape is Shape.FLAG for name in option.names}
    inserted = [word for key, value in read_yaml(Path(words[index + 1])).items() for word in _of_file(str(key), value, flags)]
    before = words[:1] if first else []
    return [*before, *inserted, *words[len(before) : index], *words[index + 2 :]]


def _of_file(key: str, value: Any, flags: set[str]) -> list[str]:
    option = f"--{key}"
    if value is True:
        return [option]
    if value is False:
        return [f"--no-{key}"] if _dashed(option) in flags else []
    if isinstance(value, list):
        return [option, *map(str, value)] if value else []
    return [option, json.dumps(value) if isinstance(value, dict) else str(value)]


def _spelled(words: Sequence[str]) -> list[str]:
    """Writes long options with dashes, and the levels of ``-O`` in full."""
    found = []
    for number, word in enumerate(words):
        if word.startswith("--"):
            found.append(_dashed(word))
        elif word.startswith("-O") and word != "-O":
            found += ["--optimization-level", word[2:].removeprefix("=")]
        elif word == "-O" and words[number + 1 : number + 2] and words[number + 1] in _LEVELS:
            found.append("--optimization-level")
        else:
            found.append(word)
    return found


def _dashed(word: str) -> str:
    return _LONG.sub(lambda match: match[0].replace("_", "-"), word, count=1)


def _joined(words: Sequence[str]) -> list[str]:
    """Turns ``--option.key value`` into ``--option JSON``."""
    found: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    left = iter(words)
    for word in left:
        path, equals, value = word.partition("=")
        if not path.startswith("-") or "." not in path or re.match(r"-[\d.]", path):
            found.append(word)
            continue
        if not equals and (value := next(left, None) or "") == "":
            raise UsageError(f"vllm serve: {path} needs a value")
        name, *keys = path.removesuffix("+").split(".")
        _lay(nested.setdefault(name, {}), keys, value.split(",") if path.endswith("+") else _plain(value))
    return [*found, *(word for name, values in nested.items() for word in (name, json.dumps(values)))]


def _lay(values: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    *parents, last = keys
    for parent in parents:
        if not isinstance(values.get(parent), dict):
            values[parent] = {}
        values = values[parent]
    old = values.get(last)
    values[last] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else value


def _plain(text: str) -> Any:
    for read in (json.loads, _whole):
        try:
            return read(text)
        except ValueError:
            continue
    return text


# ---- options and values


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"vllm serve: {message}")


def _parser(options: Iterable[ServeOption], arguments: EngineArguments, *, with_tag: bool) -> _Parser:
    parser = _Parser(prog="vllm serve", add_help=False, argument_default=argparse.SUPPRESS)
    if with_tag:
        parser.add_argument(_TAG, nargs="?")
    for option in options:
        destination = option.argument or f"{_SERVER}{option.name}"
        parser.add_argument(*option.names, dest=destination, **_shape(option, arguments))
        if option.inverse:
            parser.add_argument(*option.inverse, dest=destination, action="store_false")
    return parser


def _shape(option: ServeOption, arguments: EngineArguments) -> dict[str, Any]:
    """An option's values as argparse declares them; those of the server are not read."""
    match option.shape:
        case Shape.FLAG:
            return {"action": argparse.BooleanOptionalAction}
        case Shape.SWITCH:
            return {"action": "store_true"}
        case Shape.OPTIONAL:
            return {"nargs": "?", "const": True}
        case Shape.VALUES:
            return {"nargs": "+", "type": _of_list(option, arguments)}
    if option.argument is None:
        return {}
    return {"type": _length if option.argument == _LENGTH else _reader(option.type)}


def _unknown(words: Sequence[str], options: Iterable[ServeOption]) -> str:
    names = [name for option in options for name in (*option.names, *option.inverse)]
    wrong = [word.partition("=")[0] for word in words if word.startswith("-")] or list(words)
    listed = ", ".join(f"{name}{_near(name, names)}" for name in wrong)
    return f"this vLLM's serve has no option or argument {listed}"


def _near(name: str, names: Sequence[str]) -> str:
    """The nearest option, unless it says the contrary."""
    near = nearest(name, names)
    pairs = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
    is_contrary = any(name.startswith(one) and f"'{other}" in near for one, other in pairs)
    return "" if is_contrary else near


def _reader(type_: Any) -> Callable[[str], Any]:
    """What turns a word into a value of a type; the order is vLLM's, where a type has several kinds."""
    kinds = [kind for kind in members(type_) if kind is not type(None)]

    def read(text: str) -> Any:
        if text in ("", "None") and type(None) in members(type_):
            return None
        for kind in kinds:
            if get_origin(kind) is Literal:
                return _literal(text, get_args(kind), free=str in kinds)
        for plain, reader in ((int, _whole), (float, float)):
            if plain in kinds:
                return reader(text)
        return text if kinds == [str] else _structured(text)

    read.__name__ = "value"  # what argparse calls it in its messages
    return read


def _literal(text: str, values: Sequence[Any], *, free: bool) -> Any:
    found = next((value for value in values if str(value) == text), None)
    if found is None and not free:
        raise argparse.ArgumentTypeError(
            f"takes one of {', '.join(map(str, values))}, not {text!r}{nearest(text, map(str, values))}"
        )
    return text if found is None else found


def _of_list(option: ServeOption, arguments: EngineArguments) -> Callable[[str], Any]:
    """Members of lists are texts, unless the annotation names numbers alone."""
    argument = arguments.find(option.argument or "")
    inner = re.search(r"(?:list|set|tuple)\[(.*?)\]", argument.annotation) if argument else None
    whole = inner is not None and "int" in inner[1] and "str" not in inner[1]
    return _whole if whole else str


def _whole(text: str) -> int:
    """A whole number, also as ``1k`` (1000) or ``1K`` (1024)."""
    if match := _NUMBER.fullmatch(text.strip()):
        if match[2].isupper() and "." in match[1]:
            raise ValueError(text)
        return int(float(match[1]) * _MULTIPLES[match[2]])
    return int(text)


def _length(text: str) -> int | None:
    """``engine.max_model_len``; ``auto`` and -1 leave it to vLLM, which takes what memory allows."""
    return None if text.strip().lower() in ("-1", "auto") else _whole(text)


def _structured(text: str) -> Any:
    """JSON of a mapping or a list, in which numbers may have multiples as well; all else is text."""
    if not re.match(r"\s*[\[{]", text):
        return text
    try:
        return json.loads("".join(_expanded(text)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON: {error}") from None


def _expanded(text: str) -> Iterator[str]:
    for number, part in enumerate(re.split(r'("(?:[^"\\]|\\.)*")', text)):
        yield part if number % 2 else re.sub(rf"\b{_NUMBER.pattern}\b", lambda match: str(_whole(match[0])), part)
