"""Reads the command line of a vLLM server and returns the configuration that it stands for.

vLLM's own parser reads the line, in a process of its own (`quirks_core.source.engine_parser`). Its answers are kept, so that a
line that was read before takes no import.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any

from quirks_core.base.errors import UsageError, shown
from quirks_core.configuration.config import GenerationConfig, Purpose
from quirks_core.configuration.engine_run import EngineRun
from quirks_core.configuration.slots import problem_of_name
from quirks_core.configuration.yaml_file import lay_over
from quirks_core.source.engine_parser import Answer, Run, judge
from quirks_core.source.vllm_source import INSTALLED, VllmSource

_FORMS = "write: vllm serve MODEL …, or: python -m vllm.entrypoints.openai.api_server --model MODEL …"
#: Modules that a Python runs as a server; the first word after some of them is a command.
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry")
_COMMANDS = ("vllm.entrypoints.cli.main", "vllm")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: Options that are no engine argument of the configuration: they select the checkpoint.
_MODEL: Mapping[str, str] = {"model": "path", "revision": "revision", "tokenizer": "tokenizer"}
#: Options that make a server one rank of several, whose engine does not own all data-parallel ranks.
_RANKS = ("data_parallel_rank", "data_parallel_external_lb")
_TAG, _FILE, _LENGTH, _LEFT_TO_VLLM = "model_tag", "config", "max_model_len", -1
#: The stage of a judgement in which the command line is parsed.
_OPTIONS, _CLOSE = "options", 0.75


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What a command line holds.

    Attributes:
        arguments: The engine arguments that were typed, the model among them, with their values; None is an explicit ``None``.
        environment: Variables that were set before the command.
        server: The options of the server alone that were typed, by their first long name.
        words: The words after ``vllm serve``.
        model: The checkpoint: what was typed, or vLLM's default.
    """

    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    server: tuple[str, ...]
    words: tuple[str, ...]
    model: str

    def config(self, *, purpose: Purpose = "serve", settings: Iterable[str] = ()) -> GenerationConfig:
        """Returns the configuration of the engine that the command starts.

        It is what the hook in the server's own process plans for: what was typed counts as typed, and nothing else does; what
        was left open is vLLM's choice (the weights are loaded, whatever the purpose). An engine owns its data-parallel ranks
        (``parallel.dp_strategy``), unless it is one of them. Settings (``slot=value``: the trainer's facts, say) are laid over.

        Raises:
            UsageError: Something in it is wrong, a value of an argument for example.
        """
        typed = {name: value for name, value in self.arguments.items() if value is not None}
        model = {"path": self.model, **{key: typed[name] for name, key in _MODEL.items() if name in typed and name != "model"}}
        engine = {name: value for name, value in typed.items() if name not in _MODEL and not problem_of_name(f"engine.{name}")}
        values: dict[str, Any] = {"purpose": purpose, "model": model, "engine": engine, "env": dict(self.environment)}
        for text in settings:
            lay_over(values, text)
        typed_slots = GenerationConfig.parse(values).typed_slots()
        values["engine"] = {"async_engine": True, "load_format": "auto", **values["engine"]}
        if not any(engine.get(name) not in (None, False) for name in _RANKS):
            values["parallel"] = {"dp_strategy": "engine", **values.get("parallel", {})}
        return EngineRun.given(values, typed_slots)


def read_serve_command(
    words: Sequence[str], source: VllmSource = INSTALLED, *, notify: Callable[[str], None] = lambda _: None
) -> ServeCommand:
    """Reads a command line with the parser of the vLLM that it is for, whose code runs.

    Args:
        words: The words, as a shell would pass them: ``["vllm", "serve", "MODEL", "-tp", "2"]``. Assignments of variables may
            precede them.
        source: The vLLM that the command is for.
        notify: Called before its code runs.

    Raises:
        UsageError: It starts no server of vLLM's, vLLM's parser refuses it, or there is no vLLM whose parser could read it.
    """
    run, answer = judged(words, source, notify=notify)
    typed = run.words or ()
    if answer.failure:
        raise UsageError(
            f"vLLM's own parser reads a command line, and {answer.failure}; describe the run by --model and --set instead, for "
            "example: quirks plan --trainer serve --model MODEL"
        )
    (found,) = answer.lines
    if found.stage == _OPTIONS:
        raise UsageError(f"vllm serve: {found.message}{_hints(typed, source)}")
    if _FILE in found.typed:  # of a file that it reads, vLLM sees the options alone
        raise UsageError("vllm serve ignores --config=FILE; write it with a space: --config FILE")
    arguments = {name: value for name, value in found.typed.items() if name in (source.arguments.names() or ())}
    if tag := found.typed.get(_TAG):
        arguments["model"] = tag
    if arguments.get(_LENGTH) == _LEFT_TO_VLLM:
        arguments[_LENGTH] = None
    server = tuple(sorted(f"--{name.replace('_', '-')}" for name in found.typed if name not in {*arguments, _TAG}))
    default = source.arguments.find("model")
    model = arguments.get("model") or (default.default if default else "")
    return ServeCommand(arguments, run.environment, server, typed, model)


def judged(words: Sequence[str], source: VllmSource, *, notify: Callable[[str], None]) -> tuple[Run, Answer]:
    """Returns the run that a command line describes, and what the vLLM makes of it; the answer is kept.

    Raises:
        UsageError: It starts no server of vLLM's.
    """
    environment, rest = _assignments(words)
    typed = _after_program(rest)
    run = Run(words=tuple(typed), environment=environment, model=_model_among(typed))
    return run, judge(source, [run], notify=notify)


def _model_among(words: Iterable[str]) -> dict[str, Any] | None:
    """The ``config.json`` of the first word that is a model's folder: the answer then serves for the comparison as well."""
    for word in words:
        with suppress(OSError, ValueError):
            found = json.loads((Path(word) / "config.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
    return None


def _hints(words: Iterable[str], source: VllmSource) -> str:
    """The options nearest to those that do not exist."""
    names = [name for option in source.options() or () for name in option.names if name.startswith("--")]
    typed = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--") and "." not in word]
    wrong = [one for one in typed if not any(name.startswith(one.replace("--no-", "--", 1)) for name in names)]
    close = [get_close_matches(one, [name for name in names if not _are_contrary(one, name)], 1, _CLOSE) for one in wrong]
    return "".join(f"; did you mean {found[0]!r}?" for found in close if found)


def _are_contrary(one: str, other: str) -> bool:
    pairs = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
    return any(one.startswith(begin) and other.startswith(end) for begin, end in pairs)


# ---- which program


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    environment, rest = {}, list(words)
    if rest[:1] == ["env"]:
        del rest[0]
    while rest and (assigned := _ASSIGNMENT.fullmatch(rest[0])):
        environment[assigned[1]] = assigned[2]
        del rest[0]
    return environment, rest


def _after_program(words: list[str]) -> list[str]:
    """Returns the words after the program."""
    program = PurePath(words[0]).name if words else ""
    if program == "vllm" and words[1:2] == ["serve"]:
        return words[2:]
    if re.fullmatch(r"python[\d.]*", program) and "-m" in words:
        module, *rest = [*words[words.index("-m") + 1 :], ""]
        if module in _SERVERS:
            return rest[:-1]
        if module in _COMMANDS and rest[:1] == ["serve"]:
            return rest[1:-1]
    plain = itertools.takewhile(lambda word: not word.startswith("--"), words)  # an option may hold a key
    raise UsageError(f"{shown(' '.join(plain), 100)} starts no server of vLLM's; {_FORMS}")
