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
from quirks_core.upgrade.paste import Form

from .conftest import MODELS
from .option_lines import lines

_MODEL = MODELS["qwen3_moe"]
_ALL = os.environ.get("MODEL_QUIRKS_TESTS_OPTIONS") == "all"
_VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0") if _ALL else ("0.32.0", "0.33.0")
#: Of the sample, one line in so many.
_EVERY = 1 if _ALL else 24

#: Prints for each line whether the release takes it: its parser, its checks of a server, its dataclasses.
_PROGRAM = """
import contextlib, copy, importlib, io, json, os, sys
tree, path, found = json.loads(sys.stdin.readline()), json.loads(sys.stdin.readline()), []
sys.path[:] = [*([tree] if tree else []), *path]
import vllm, vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
for name in ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args"):
    with contextlib.suppress(ModuleNotFoundError):
        cli = importlib.import_module(name)
        break
parser = cli.make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
for words in json.loads(sys.stdin.readline()):
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
sys.stderr.write("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def compared(sources):
    """The releases that are compared, by version."""
    return {version: sources[version] for version in _VERSIONS}


@pytest.fixture(scope="module")
def written(compared):
    """The lines."""
    described = [judge(source, [], describe=True).description for source in compared.values()]
    return lines(*described)[::_EVERY]


@pytest.fixture(scope="module")
def ours(compared, written):
    """What our own process finds for each release and line."""
    model = None if _ALL else _MODEL  # configurations with a model take 0.2 s each
    runs = [Run(words=("M", *line), model=model) for line in written]
    return {version: judge(source, runs).lines for version, source in compared.items()}


@pytest.fixture(scope="module")
def theirs(compared, written, tmp_path_factory):
    """What each release refuses, by line; empty for what it takes."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
    return {version: _refused(source, written, folder) for version, source in compared.items()}


def _refused(source, written, folder):
    tree = None if source.folder is None else str(source.folder.parent)
    text = "\n".join(json.dumps(part) for part in (tree, sys.path, written))
    environ = {**os.environ, "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM], input=text, capture_output=True, text=True, check=True, cwd=folder, env=environ
    )
    return json.loads(done.stderr.rpartition("FOUND")[2])


def test_no_go_is_given_for_what_a_release_refuses(ours, theirs, written, record_property):
    false, unknown, compared = [], 0, 0
    for before, after in itertools.permutations(ours, 2):
        for number, line in enumerate(written):
            judged = Judged(ours[before][number], ours[after][number], None, (before, after), "cpu")
            verdict = verdict_of(judged_findings(judged, (), Form(is_command=True)))
            compared, unknown = compared + 1, unknown + (verdict is Verdict.UNKNOWN)
            if verdict not in (Verdict.STOP, Verdict.UNKNOWN) and theirs[after][number]:
                false.append((before, after, line, theirs[after][number]))

    record_property("compared", compared)
    record_property("unknown", unknown)
    sys.stdout.write(f"{compared} verdicts on {len(written)} lines; {unknown} are unknown\n")
    assert false == []
