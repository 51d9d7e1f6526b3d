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
from typing import Literal, get_args, get_origin

from quirks_core.source.engine_parser import Run, judge
from quirks_core.source.serve_options import Shape, members
from quirks_core.upgrade.finding import Verdict, verdict_of
from quirks_core.upgrade.judged import Judged, judged_findings

from .conftest import MODELS

_MODEL = MODELS["qwen3_moe"]
_ALL = os.environ.get("MODEL_QUIRKS_TESTS_OPTIONS") == "all"
_VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0") if _ALL else ("0.32.0", "0.33.0")
#: Of the sample, one line in so many.
_EVERY = 1 if _ALL else 24

#: Options that end the parser, or read files.
_LEFT_OUT = {"--config", "--help", "model", "tokenizer"}
#: Values that some option or key takes; what an option refuses is a case as well.
_VALUES, _NESTED = ("1", "auto", "x"), (1, True, "x")

#: Imports a release as its own command does, and writes what it says of each line, empty if it takes it: its parser, its
#: checks of a server, its dataclasses.
_PROGRAM = """
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
sys.stderr.write("FOUND" + json.dumps(found))
"""


def _lines(source):
    for option in source.options():
        if option.argument in _LEFT_OUT or option.name in _LEFT_OUT:
            continue
        if option.shape in (Shape.FLAG, Shape.SWITCH):
            yield from ((name,) for name in option.names)
            yield from ((f"--no-{name[2:]}",) for name in option.names if option.shape is Shape.FLAG and name.startswith("--"))
            continue
        choices = [str(one) for kind in members(option.type) if get_origin(kind) is Literal for one in get_args(kind)]
        yield from ((option.name, value) for value in choices or _VALUES)
        for path, field in source.arguments.nested(option.argument).items() if option.argument else ():
            if path.count(".") == 1:
                is_plain = isinstance(field.default, bool | int | float | str | list | dict)
                values = (field.default,) if is_plain else _NESTED
                yield from ((option.name, json.dumps({path.partition(".")[2]: value})) for value in values)


def _refused(source, folder, lines):
    """What the release refuses, by line; empty for what it takes."""
    tree = None if source.folder is None else str(source.folder.parent)
    environ = {**os.environ, "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    text = json.dumps([tree, sys.path, lines])
    command = [sys.executable, "-P", "-c", _PROGRAM]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=folder, env=environ)
    return json.loads(done.stderr.rpartition("FOUND")[2])


def test_no_go_is_given_for_what_a_release_refuses(sources, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
    releases = {version: sources[version] for version in _VERSIONS}
    written = sorted({line for source in releases.values() for line in _lines(source)})[::_EVERY]
    model = None if _ALL else _MODEL  # configurations with a model take 0.2 s each
    runs = [Run(words=("M", *line), model=model) for line in written]
    ours = {version: judge(source, runs).lines for version, source in releases.items()}
    theirs = {version: _refused(source, tmp_path, written) for version, source in releases.items()}

    false, unknown, compared = [], 0, 0
    for before, after in itertools.permutations(ours, 2):
        for number, line in enumerate(written):
            judged = Judged(ours[before][number], ours[after][number], None, (before, after), "cpu")
            verdict = verdict_of(judged_findings(judged, ()))
            compared, unknown = compared + 1, unknown + (verdict is Verdict.UNKNOWN)
            if verdict not in (Verdict.STOP, Verdict.UNKNOWN) and theirs[after][number]:
                false.append((before, after, line, theirs[after][number]))

    refused = {version: sum(map(bool, found)) for version, found in theirs.items()}
    sys.stdout.write(f"{compared} verdicts on {len(written)} lines, refused: {refused}; {unknown} are unknown\n")
    assert all(0 < count < len(written) for count in refused.values())
    assert false == []
