"""The program that `engine_parser` runs: it imports one vLLM and lets that vLLM read command lines. It is no module of ours.

It runs in a process of its own (``python -I``), so only the standard library and vLLM's requirements are imported. The CPU
platform stands in for every other one, so neither kernels nor a GPU are needed. ``argv``: the file with the request and the
file for the answer, both JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import enum
import gc
import importlib
import importlib.machinery
import inspect
import io
import json
import logging
import os
import re
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

#: Where ``make_arg_parser`` is: since vLLM 0.33, since 0.29, and before.
_PARSERS = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
#: Audit events that reach the network or start programs.
_FORBIDDEN = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostby",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
)
#: What an argument or a configuration is refused with; other exceptions come from what is missing here.
_REFUSALS = (ValueError, TypeError, KeyError, AssertionError, NotImplementedError, argparse.ArgumentError)
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
#: Lines between a question about the platform and the refusal that depends on it, at most.
_NEAR = 12
_MOST_STUBS = 24
#: Modules of vLLM that are stubbed: it patches the compiler of torch, whose import takes four seconds.
_NOT_NEEDED = ("vllm.env_override",)
_LONGEST = 1500
#: Options that hold a secret, and what stands for it in answers, which are kept in files.
_SECRETS, _MASK = ("api_key", "hf_token"), "…"
#: Fields of configurations that differ from process to process, or belong to the model's own files.
_LEFT_OUT = (
    "instance_id",
    "engine_id",
    "hf_token",
    "hf_config",
    "hf_text_config",
    "hf_image_processor_config",
    "compile_factors",
    "placement_group",
)


def main() -> None:
    """Reads the request, answers it."""
    gc.disable()  # a third of the time goes into garbage that an import does not make
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path[:] = [*([request["tree"]] if request["tree"] else []), *request["path"]]
    _stub([*request["stubs"], *_NOT_NEEDED])
    answer: dict[str, Any] = {}
    _without_network()
    try:
        release = Release(request["tree"])
        answer["lines"] = [release.judge(item) for item in request["lines"]]
    except ImportError as error:
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing and missing not in ("vllm", *request["stubs"]) and len(request["stubs"]) < _MOST_STUBS:
            answer["missing"] = missing
        else:
            answer["failure"] = _words(error)
    except Exception as error:  # the release's own code
        answer["failure"] = _words(error)
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # to take down all modules takes longer than a second


def _without_network() -> None:
    """Takes the network away, where the kernel lets it; sockets and programs are refused in any case."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)

    def refuse(event: str, _: Any) -> None:
        if event.startswith(_FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(refuse)


class _Stub(types.ModuleType):
    """Stands for a requirement that is not installed; its names are classes that nothing is an instance of."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__, self.__version__ = [], "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _stub(names: list[str]) -> None:
    class Finder:
        def find_spec(self, name: str, *_: Any) -> Any:
            is_one = name in names or name.partition(".")[0] in names
            return importlib.machinery.ModuleSpec(name, self) if is_one else None  # type: ignore[arg-type]

        def create_module(self, spec: Any) -> types.ModuleType:
            return _Stub(spec.name)

        def exec_module(self, module: types.ModuleType) -> None:
            """There is nothing in it."""

    sys.meta_path.insert(0, Finder())


def _leave_uncompiled() -> None:
    """Makes ``torch.compile`` leave functions as they are: a decorator imports the compiler, and no such function is called."""
    torch: Any = importlib.import_module("torch")
    torch.compile = lambda function=None, **_: (lambda one: one) if function is None else function


class _Log:
    """Keeps the warnings that vLLM logs, each once; a handler would go when vLLM configures its logging."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._make = logging.getLogRecordFactory()
        logging.setLogRecordFactory(self._keep)

    def _keep(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        if record.levelno >= logging.WARNING and record.name.startswith("vllm"):
            with contextlib.suppress(Exception):
                if (text := record.getMessage()[:_LONGEST]) not in self.texts:
                    self.texts.append(text)
        return record


class Release:
    """One vLLM, imported with the CPU platform."""

    def __init__(self, tree: str | None) -> None:
        file = str(importlib.import_module("vllm").__file__)
        if tree is not None and not file.startswith(tree):  # a .pth file may have imported another one
            raise ValueError(f"{tree} was asked for, and {file} is imported")
        self.root = str(Path(file).parent)
        self.queried: set[tuple[types.CodeType, int]] = set()
        self._force_platform()
        _leave_uncompiled()
        self.log = _Log()
        self.flexible = _first("FlexibleArgumentParser", ("vllm.utils.argparse_utils", "vllm.utils"))
        self.module = next(module for name in _PARSERS if (module := _module(name)) and hasattr(module, "make_arg_parser"))
        self.arg_utils = importlib.import_module("vllm.engine.arg_utils")
        self.parser = self.flexible(prog="vllm")
        self.module.make_arg_parser(self.parser.add_subparsers(dest="subparser", required=True).add_parser("serve"))
        self.typed: dict[str, Any] = {}
        self._record_typed()
        self.fields = [item.name for item in dataclasses.fields(self.arg_utils.AsyncEngineArgs)]

    def _force_platform(self) -> None:
        platforms: Any = importlib.import_module("vllm.platforms")
        cpu = importlib.import_module("vllm.platforms.cpu").CpuPlatform
        queried = self.queried

        class StandIn(cpu):  # type: ignore[misc, valid-type]
            """The CPU platform; it notes the places that read what it is."""

            def __getattribute__(self, name: str) -> Any:
                frame = sys._getframe(1)
                queried.add((frame.f_code, frame.f_lineno))
                return super().__getattribute__(name)

        platforms._current_platform = StandIn()

    def _record_typed(self) -> None:
        """Notes each destination that the parser reads words for; of a configuration, the mapping without its defaults."""
        read = self.flexible._get_values

        def recorded(parser: Any, action: argparse.Action, words: list[str]) -> Any:
            value = read(parser, action, words)
            if action.option_strings or words:  # an optional positional comes, too
                self.typed[action.dest] = words[0] if dataclasses.is_dataclass(value) else None
                with contextlib.suppress(TypeError, ValueError):
                    self.typed[action.dest] = json.loads(self.typed[action.dest])
            return value

        self.flexible._get_values = recorded

    # ---- one command line, or one set of engine arguments

    def judge(self, item: dict[str, Any]) -> dict[str, Any]:
        """Lets this vLLM read a command line (``words``) or engine arguments (``arguments``), as far as it goes."""
        self.log.texts.clear()
        self.queried.clear()
        for name in ("print_warning_once", "_print_warning_once"):
            with contextlib.suppress(Exception):
                getattr(importlib.import_module("vllm.logger"), name).cache_clear()
        found: dict[str, Any] = {"stage": "options"}
        with (
            mock.patch.dict(os.environ, item.get("environment", {})),
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as text,
        ):
            warnings.simplefilter("always")
            try:
                self._judge(item, found)
                found["outcome"] = "accepted"
            except SystemExit:
                found |= {"outcome": "refused", "message": _argparse_words(text.getvalue())}
            except Exception as error:
                found |= self._outcome(error, found["stage"])
        warned = [str(one.message)[:_LONGEST] for one in caught if one.filename.startswith(self.root)]
        found["warnings"] = list(dict.fromkeys([*self.log.texts, *warned]))
        return found

    def _judge(self, item: dict[str, Any], found: dict[str, Any]) -> None:
        if "words" in item:
            words = ["serve", *item["words"]]
            self.typed.clear()
            args = argparse.Namespace(**copy.deepcopy(vars(self.parser.parse_args(words))))  # defaults are shared, and changed
            typed = {name: getattr(args, name) if value is None else value for name, value in self.typed.items()}
            found["typed"] = _values({name: value for name, value in typed.items() if name != "subparser"})
            if getattr(args, "model_tag", None) is not None:
                args.model = args.model_tag
            found["server"] = _values(
                {k: v for k, v in vars(args).items() if k not in (*self.fields, "model_tag", "subparser")}
            )
            args.model, args.tokenizer = item["folder"], None
            found["stage"] = "server"
            self.module.validate_parsed_serve_args(args)
            self._registered(args)
            found["stage"] = "engine arguments"
            engine = self.arg_utils.AsyncEngineArgs.from_cli_args(args)
        else:
            found["stage"] = "engine arguments"
            given = {**item["arguments"], "model": item["folder"]}
            engine = self.arg_utils.AsyncEngineArgs(**{name: value for name, value in given.items() if name != "tokenizer"})
            self._registered(engine)
        found["stage"] = "configuration"
        if item["model"] is not None:
            found["config"] = self._config(engine)
            found["stage"] = "all"

    def _registered(self, args: Any) -> None:
        """Looks names up in the registries that vLLM looks them up in only when the server runs."""
        given = dict(vars(args))
        if not given.get("tool_parser_plugin") and (name := given.get("tool_call_parser")):
            known = _first("ToolParserManager", ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")).list_registered()
            _check("tool call parser", name, known)
        outputs = given.get("structured_outputs_config")
        name = given.get("reasoning_parser") or getattr(outputs, "reasoning_parser", None)
        if not given.get("reasoning_parser_plugin") and name:
            _check("reasoning parser", name, importlib.import_module("vllm.reasoning").ReasoningParserManager.list_registered())
        mode = given.get("tokenizer_mode")
        registry = _module("vllm.tokenizers.registry")
        if mode not in (None, "auto") and registry is not None:
            known = registry.TokenizerRegistry.tokenizers
            # "slow" and the like were ways to use the tokenizer of transformers.
            if mode not in known and not re.search(
                rf"tokenizer_mode == [\"']{re.escape(str(mode))}[\"']", inspect.getsource(registry)
            ):
                raise ValueError(f"No tokenizer registered for tokenizer_mode={mode!r}")

    def _config(self, engine: Any) -> dict[str, Any]:
        """Makes the configuration of the engine; the model has its config.json here, and no tokenizer."""
        reasoning: Any = _module("vllm.config.reasoning")
        if reasoning is not None and hasattr(reasoning.ReasoningConfig, "initialize_token_ids"):
            reasoning.ReasoningConfig.initialize_token_ids = lambda *_: None
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        if hasattr(registry, "_run_in_subprocess"):
            registry._run_in_subprocess = lambda function: function()  # it starts another Python, without this platform
        found: dict[str, Any] = _plain(engine.create_engine_config())
        return found

    def _outcome(self, error: Exception, stage: str) -> dict[str, Any]:
        """Distinguishes a refusal from what this process cannot do."""
        where = "undecided"
        causes = [error, *_inner(error)]
        frames = [one for cause in causes for one in traceback.walk_tb(cause.__traceback__)]
        inside = [(frame.f_code, line) for frame, line in frames if frame.f_code.co_filename.startswith(self.root)]
        names = [code.co_filename[len(self.root) + 1 :] for code, _ in inside]
        if isinstance(error, _REFUSALS) and not any(isinstance(one, ImportError | OSError) for one in causes):
            last = inside[-1] if inside else None
            queried = last is not None and any(code is last[0] and 0 <= last[1] - line <= _NEAR for code, line in self.queried)
            by_model = any(name.startswith(("model_executor/", "transformers_utils/")) for name in names)
            if queried or any(name.startswith("platforms/") for name in names):
                where = "platform"
            elif by_model and stage == "configuration":
                where = "undecided"
            else:
                where = "refused"
        place = f"{names[-1]}:{inside[-1][1]}" if inside else ""
        return {"outcome": where, "message": _words(error), "place": place}


# ---- helpers


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("vllm"):
            return None
        raise


def _first(attribute: str, modules: tuple[str, ...]) -> Any:
    return next(getattr(module, attribute) for name in modules if (module := _module(name)) and hasattr(module, attribute))


def _check(what: str, name: str, known: Any) -> None:
    if name not in known:
        raise KeyError(f"invalid {what}: {name} (registered: {', '.join(sorted(known))})")


def _inner(error: BaseException) -> list[BaseException]:
    """The exceptions inside of one: what pydantic collects, causes and contexts."""
    found: list[BaseException] = []
    with contextlib.suppress(Exception):
        rows = error.errors(include_url=False)  # type: ignore[attr-defined]
        inner = [(row.get("ctx") or {}).get("error") for row in rows]
        found += [one for one in inner if isinstance(one, BaseException)]
    for one in (error.__cause__, error.__context__):
        if one is not None and one is not error:
            found += [one, *_inner(one)]
    return found


def _words(error: BaseException) -> str:
    """The message of an exception, without what is only for those who debug pydantic."""
    with contextlib.suppress(Exception):
        rows = error.errors(include_url=False)  # type: ignore[attr-defined]
        parts = [f"{'.'.join(map(str, row['loc']))}: {row['msg']}" if row["loc"] else str(row["msg"]) for row in rows]
        return f"{type(error).__name__}: {'; '.join(parts)}"[:_LONGEST]
    text = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
    return f"{type(error).__name__}: {text}"[:_LONGEST]


def _argparse_words(text: str) -> str:
    """The sentence behind the usage that argparse prints, without what is only for those who debug pydantic.

    What follows an option that does not exist is left out: it may be a key.
    """
    sentence = re.sub(r"\[type=[^]]*, input_type=\w+\]|For further information visit \S+", "", text.rpartition("error: ")[2])
    first, wrong, rest = " ".join(sentence.split()).partition("unrecognized arguments: ")
    options = [word.partition("=")[0] for word in rest.split() if word.startswith("-")]
    return f"{first}{wrong}{' '.join(options) or rest}"[:_LONGEST]


def _values(options: dict[str, Any]) -> dict[str, Any]:
    return {name: _MASK if name in _SECRETS and value is not None else _plain(value) for name, value in options.items()}


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON can hold it; objects that are no configurations by their type's name alone."""
    if depth > 8:
        return "…"
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value, int) else value.name  # as it is typed
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [
            item.name for item in dataclasses.fields(value) if not item.name.startswith("_") and item.name not in _LEFT_OUT
        ]
        return {name: _plain(getattr(value, name, None), depth + 1) for name in names}
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(one, depth + 1) for one in value), key=str)
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, type) or callable(value):
        return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"
    text = str(value)
    return f"<{type(value).__qualname__}>" if " object at 0x" in text or len(text) > _LONGEST else text


if __name__ == "__main__":
    main()
