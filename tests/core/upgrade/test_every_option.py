"""Every option and nested key of two releases: no go for what the release's own parser or dataclasses refuse.

What they refuse is found here without `quirks_core.source.engine_parser`: by a program that imports the release as vLLM's own
command does. A sample is compared by default; ``MODEL_QUIRKS_TESTS_OPTIONS=all`` (``make upgrade-options``) compares all pairs.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from quirks_core.source.engine_parser import Run, judge
from quirks_core.upgrade.finding import Verdict, verdict_of
from quirks_core.upgrade.judged import Judged, judged_findings

from .conftest import MODELS
from .option_lines import lines

_MODEL = MODELS["qwen3_moe"]
_ALL = os.environ.get("MODEL_QUIRKS_TESTS_OPTIONS") == "all"
_VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0") if _ALL else ("0.32.0", "0.33.0")
#: Of the sample, one line in so many.
_EVERY = 1 if _ALL else 24

#: Imports a release as its own command does. Each of the following programs leaves what it finds in ``found``.
_IMPORT = """
import argparse, contextlib, copy, dataclasses, importlib, io, json, os, sys
tree, path, lines = json.load(sys.stdin)
sys.path[:] = [*([tree] if tree else []), *path]
import vllm, vllm.config, vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
for name in ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args"):
    with contextlib.suppress(ModuleNotFoundError):
        cli = importlib.import_module(name)
        break
parser = cli.make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
"""
#: Whether the release takes each line: its parser, its checks of a server, its dataclasses.
_PARSE = """
found = []
for words in lines:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            args = parser.parse_args([os.getcwd(), *words])
            args = type(args)(**copy.deepcopy(vars(args)))
            args.model = os.getcwd()
            cli.validate_parsed_serve_args(args)
            AsyncEngineArgs.from_cli_args(args)
            found.append("")
        except (SystemExit, Exception) as error:
            found.append(f"{type(error).__name__}: {error}"[:300])
"""
#: The options of the release, the names in its registries, and the fields of its configurations with their defaults.
_DESCRIBE = """
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers.registry import TokenizerRegistry
from vllm.tool_parsers import ToolParserManager
from vllm.v1.attention.backends.registry import AttentionBackendEnum

def option(action):
    is_flag = isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0
    names = [*getattr(action, "negative_option_strings", ()), *action.option_strings]
    choices = sorted(map(str, action.choices)) if action.choices else []
    return {"names": names, "dest": action.dest, "is_flag": is_flag, "choices": choices}

def defaults(kind):
    values = {}
    for item in dataclasses.fields(kind):
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            with contextlib.suppress(Exception):
                default = item.default_factory()
        is_plain = isinstance(default, (bool, int, float, str, list, dict))
        values[item.name] = default if is_plain and not str(default).startswith("annotation=") else None
    return values

kinds = {name: getattr(vllm.config, name) for name in dir(vllm.config)}
found = {
    "options": [option(action) for action in parser._actions if action.option_strings],
    "registries": {
        "tool_call_parser": sorted(ToolParserManager.list_registered()),
        "reasoning_parser": sorted(ReasoningParserManager.list_registered()),
        "tokenizer_mode": sorted(TokenizerRegistry.tokenizers),
        "attention_backend": sorted(member.name for member in AttentionBackendEnum),
        "quantization": sorted(QUANTIZATION_METHODS),
    },
    "configurations": {name: defaults(kind) for name, kind in kinds.items() if dataclasses.is_dataclass(kind)},
}
"""


@pytest.fixture(scope="module")
def compared(sources):
    """The releases that are compared, by version."""
    return {version: sources[version] for version in _VERSIONS}


@pytest.fixture(scope="module")
def written(compared, folder):
    """The lines."""
    return lines(*(_by(source, folder, _DESCRIBE) for source in compared.values()))[::_EVERY]


@pytest.fixture(scope="module")
def ours(compared, written):
    """What our own process finds for each release and line."""
    model = None if _ALL else _MODEL  # configurations with a model take 0.2 s each
    runs = [Run(words=("M", *line), model=model) for line in written]
    return {version: judge(source, runs).lines for version, source in compared.items()}


@pytest.fixture(scope="module")
def theirs(compared, written, folder):
    """What each release refuses, by line; empty for what it takes."""
    return {version: _by(source, folder, _PARSE, written) for version, source in compared.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a model, in which the programs run."""
    found = tmp_path_factory.mktemp("model")
    (found / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
    return found


def _by(source, folder, program, words=()):
    """What a program finds that imports a release."""
    tree = None if source.folder is None else str(source.folder.parent)
    command = [sys.executable, "-P", "-c", f"{_IMPORT}{program}sys.stderr.write('FOUND' + json.dumps(found))"]
    environ = {**os.environ, "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    text = json.dumps([tree, sys.path, words])
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=folder, env=environ)
    return json.loads(done.stderr.rpartition("FOUND")[2])


def test_no_go_is_given_for_what_a_release_refuses(ours, theirs, written, record_property):
    false, unknown, compared = [], 0, 0
    for before, after in itertools.permutations(ours, 2):
        for number, line in enumerate(written):
            judged = Judged(ours[before][number], ours[after][number], None, (before, after), "cpu")
            verdict = verdict_of(judged_findings(judged, ()))
            compared, unknown = compared + 1, unknown + (verdict is Verdict.UNKNOWN)
            if verdict not in (Verdict.STOP, Verdict.UNKNOWN) and theirs[after][number]:
                false.append((before, after, line, theirs[after][number]))

    refused = {version: sum(map(bool, found)) for version, found in theirs.items()}
    record_property("compared", compared)
    record_property("unknown", unknown)
    sys.stdout.write(f"{compared} verdicts on {len(written)} lines, refused: {refused}; {unknown} are unknown\n")
    assert all(0 < count < len(written) for count in refused.values())
    assert false == []
