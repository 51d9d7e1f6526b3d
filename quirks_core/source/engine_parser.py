"""A vLLM's own judgement of a command line: its Python files are imported in a process of their own, without an engine.

This runs code of that vLLM, so the process is shut off: no network, no plugins, no credentials, no home folder, a limit on
time. Requirements that are not installed here are stubbed if the import needs them. Answers are kept in the user's
cache, by everything that they depend on.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum, auto
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from quirks_core.base import child_process, private_folder, whole_file
from quirks_core.base.errors import shortened
from quirks_core.base.json_values import sha256
from quirks_core.source.source_tree import SourceTree

_PROGRAM = Path(__file__).with_name("engine_parser_program.py")
#: Guards against a hang only; an import takes ten seconds on an idle machine.
LIMIT_S = 600.0
#: Variables of this process that the other one gets. None of them holds a secret.
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "TMPDIR")
_SET = {
    "CUDA_VISIBLE_DEVICES": "",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
}
#: Packages whose version decides what an import gives; they cannot be stubbed.
_BESIDE = ("torch", "transformers", "pydantic")
_MODEL = "model"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


class Outcome(StrEnum):
    """What a vLLM makes of a run."""

    ACCEPTED = auto()  #: every stage that was reached takes it
    REFUSED = auto()  #: it does not start
    PLATFORM = auto()  #: the CPU platform, which stands in for another one, does not take it
    UNDECIDED = auto()  #: something that is missing here keeps it from being read further


@dataclass(frozen=True)
class Judgement:
    """What a vLLM makes of one run.

    Attributes:
        outcome: Whether it takes it.
        stage: How far it came: options, server, engine arguments, configuration, all.
        message: Why it does not go further; empty if it does.
        place: File and line of that in vLLM.
        typed: What was typed, by destination, as its parser reads it; empty for engine arguments.
        server: Options of the server alone with their values, defaults included.
        config: The configuration of the engine, nested; empty if it was not reached.
        warnings: What vLLM logs.
    """

    outcome: Outcome
    stage: str
    message: str = ""
    place: str = ""
    typed: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the process of a vLLM answers.

    Attributes:
        failure: Why it could not be imported; empty if it was.
        lines: One judgement for each run, in their order.
    """

    failure: str = ""
    lines: tuple[Judgement, ...] = ()


@dataclass(frozen=True)
class Run:
    """One run to be judged: a command line, or engine arguments.

    Attributes:
        words: The words after ``vllm serve``; None for engine arguments.
        arguments: The engine arguments.
        environment: Variables that are set for it, beside those of this process; vLLM's own count.
        model: The content of the model's ``config.json``; None if it is not known.
    """

    words: tuple[str, ...] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, Any] | None = None


def judge(source: SourceTree, runs: Sequence[Run], *, notify: Callable[[str], None] = lambda _: None) -> Answer:
    """Lets a vLLM read runs with its own parser, dataclasses and checks.

    Its code runs, unless the cache has every answer; `notify` is called before.
    """
    root = next((place.absolute() for place in source.places("vllm") if (place / "__init__.py").is_file()), None)
    if root is None:
        return Answer(failure="there is no vLLM")
    digest = _digest(root)
    requests = [_request(run) for run in runs]
    files = [private_folder.user_cache() / "judgements" / f"{sha256([digest, one])[:32]}.json" for one in requests]
    kept = [_read(file) for file in files]
    missing = [number for number, answer in enumerate(kept) if answer is None]
    if missing:
        notify(f"vLLM reads the run ({root}): some seconds, once")
        tree = str(root.parent) if source.folder is not None else None
        found = _run(tree, [requests[number] for number in missing])
        if "failure" in found:
            return Answer(found["failure"])
        for number, line in zip(missing, found["lines"], strict=True):
            kept[number] = line
            _keep(files[number], line)
    return Answer(lines=tuple(_judgement(line) for line in kept if line is not None))


def _request(run: Run) -> dict[str, Any]:
    """What a judgement depends on beside the vLLM; of files that the command line names, their size and time."""
    words = (
        {"words": list(run.words), "files": _files(run.words)} if run.words is not None else {"arguments": dict(run.arguments)}
    )
    environment = {name: value for name, value in {**os.environ, **run.environment}.items() if _is_given(name)}
    return {**words, "environment": environment, "model": run.model}


def _files(words: Sequence[str]) -> dict[str, tuple[int, int]]:
    found = {}
    for word in words:
        path = word.partition("=")[2] if word.startswith("-") else word
        with suppress(OSError, ValueError):
            if path and (file := Path(path)).is_file():
                found[str(file.absolute())] = file.stat().st_size, file.stat().st_mtime_ns
    return found


def _is_given(name: str) -> bool:
    """Whether a variable is vLLM's and holds no secret."""
    return name.startswith("VLLM_") and name not in _SET and not _SECRET.search(name)


def _digest(root: Path) -> str:
    """What an answer depends on beside the request: every Python file by size and time, this program, and what it imports."""
    found = ((file, file.stat()) for file in root.rglob("*.py"))
    files = sorted((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in found)
    beside = [(name, found.version) for name in _BESIDE for found in distributions(name=name)]
    return sha256([str(root), files, _PROGRAM.read_text(encoding="utf-8"), sys.version, beside])


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError):  # not there, or damaged: it is made anew
        return None
    return found


def _keep(file: Path, found: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole_file.write(file, json.dumps(found))
    except OSError:
        return  # next time it takes as long again


def _run(tree: str | None, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    stubs: list[str] = []
    while True:
        with tempfile.TemporaryDirectory(prefix="quirks-parser-") as name:
            folder = Path(name)
            lines = [_with_model(one, folder / f"{_MODEL}-{number}") for number, one in enumerate(requests)]
            question, answer = folder / "request.json", folder / "answer.json"
            question.write_text(json.dumps({"lines": lines, "tree": tree, "path": sys.path, "stubs": stubs}), encoding="utf-8")
            output: list[str] = []
            command = [sys.executable, "-I", str(_PROGRAM), str(question), str(answer)]
            code = child_process.run(command, environ=_environment(folder), output=output.append, limit_s=LIMIT_S)
            if code is None:
                return {"failure": f"its import took longer than {LIMIT_S:.0f} s"}
            if code != 0 or not answer.is_file():
                return {"failure": f"its import ended with {code}: {shortened(' '.join(output[-3:]), 200)}"}
            found: dict[str, Any] = json.loads(
                re.sub(rf"{re.escape(name)}/{_MODEL}-\d+", _MODEL, answer.read_text(encoding="utf-8"))
            )
        if "failure" in found and stubs:
            found["failure"] += f"; not installed: {', '.join(stubs)}"
        if "missing" not in found:
            return found
        if found["missing"] in _BESIDE:
            return {"failure": f"{found['missing']} is not installed"}
        stubs.append(found["missing"])


def _with_model(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Gives a run a folder for its model: vLLM looks a name up in the network, which is not there."""
    folder.mkdir()
    if request["model"] is not None:
        (folder / "config.json").write_text(json.dumps(request["model"]), encoding="utf-8")
    return {**request, "folder": str(folder)}


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name in _KEPT if (value := os.environ.get(name)) is not None}
    home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "HF_HOME": str(folder / "hf")}
    return {**kept, **home, **_SET}


def _judgement(row: dict[str, Any]) -> Judgement:
    return Judgement(**{**row, "outcome": Outcome(row["outcome"]), "warnings": tuple(row["warnings"])})
