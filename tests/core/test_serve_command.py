"""The command line of a server, as the installed vLLM's own parser reads it, and the configuration that it stands for."""

from __future__ import annotations

import fork_server
import pytest

from quirks_core.base import private_folder
from quirks_core.base.errors import UsageError
from quirks_core.configuration.sections import ModelSection
from quirks_core.configuration.serve_command import read_serve_command
from quirks_core.source.engine_parser import Run, judge
from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import INSTALLED

pytestmark = pytest.mark.skipif(INSTALLED.arguments.names() is None, reason="the installed vLLM reads the command lines")

#: Every command line of these tests that is read with success, or that vLLM refuses. One import of vLLM reads all of them.
MIXED = "M --dtype bfloat16 -tp 2 --seed 0 --hf-overrides.head_dtype float32 --port 1234"
LINES = {
    "M": {"model": "M"},
    MIXED: {"model": "M", "dtype": "bfloat16", "tensor_parallel_size": 2, "seed": 0, "hf_overrides": {"head_dtype": "float32"}},
    "M -O3": {"model": "M", "optimization_level": "3"},
    "M --no-enable-prefix-caching --enforce-e": {"model": "M", "enable_prefix_caching": False, "enforce_eager": True},
    "M --quantization None": {"model": "M", "quantization": None},
    """M --speculative-config {"method":"ngram","num_speculative_tokens":2}""": {
        "model": "M",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
    },
    "M --hf-token abc --api-key hush --max-model-len auto": {"model": "M", "hf_token": "…", "max_model_len": None},
    "M --load-format dummy --tokenizer T --revision main": {
        "model": "M",
        "load_format": "dummy",
        "tokenizer": "T",
        "revision": "main",
    },
    "M -dp 2": {"model": "M", "data_parallel_size": 2},
    "M -dp 2 --data-parallel-rank 1": {"model": "M", "data_parallel_size": 2, "data_parallel_rank": 1},
    "M -tp 2": {"model": "M", "tensor_parallel_size": 2},
    "M -tp 0": {"model": "M", "tensor_parallel_size": 0},
    "M --seed 3": {"model": "M", "seed": 3},
    "--model M --seed 3": {"model": "M", "seed": 3},
    "--seed 1": {"seed": 1},
}
#: What vLLM's parser refuses, and what is said.
REFUSED = {
    "M --enforce-eagr": r"unrecognized arguments: --enforce-eagr; did you mean '--enforce-eager'\?",
    "M --disable-log-requests": "unrecognized arguments: --disable-log-requests(?!; did you mean '--enable)",
    "M --swap-space 4 --api-kye=SECRET": r"unrecognized arguments: --swap-space --api-kye; did you mean '--api-key'\?$",
    "M --enable-p": "ambiguous option",
    "M --config": "No config file specified",
    "M --config=serve.yaml": "ignores --config=FILE; write it with a space",
}


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Reads command lines; those of this module in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        runs = [Run(words=tuple(line.split())) for line in (*LINES, *REFUSED)]
        judge(INSTALLED, [*runs, Run(words=("M", "--seed", "3"), environment={"VLLM_USE_V1": "1"})])
        yield lambda text: read_serve_command(text.split())


@pytest.mark.parametrize("line", LINES)
def test_typed_arguments_are_those_that_vllm_reads(command, line):
    assert command(f"vllm serve {line}").arguments == LINES[line]


def test_no_secret_is_kept_or_becomes_a_slot(command):
    found = command("vllm serve M --hf-token abc --api-key hush --max-model-len auto")
    kept = [file.read_text() for file in (private_folder.user_cache() / "judgements").iterdir()]

    assert found.server == ("--api-key",)
    assert found.config().typed_slots() == frozenset()
    assert len(kept) > len(LINES) + len(REFUSED)
    assert not any("hush" in text or "abc" in text for text in (*kept, found.config().model_dump_json()))


def test_a_damaged_file_of_the_cache_is_made_anew(command):
    first = command("vllm serve M --hf-token abc --api-key hush --max-model-len auto")
    for file in (private_folder.user_cache() / "judgements").iterdir():
        file.write_text("")

    assert command("vllm serve M --hf-token abc --api-key hush --max-model-len auto").arguments == first.arguments


def test_a_command_is_read_anew_only_if_its_file_changed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.yaml").write_text("model: M\nseed: 1\n")
    first = command("vllm serve --config serve.yaml -tp 4")
    monkeypatch.setattr("quirks_core.base.child_process.run", lambda *_, **__: pytest.fail("imported again"))

    again = command("vllm serve --config serve.yaml -tp 4")

    assert first.arguments == again.arguments == {"model": "M", "seed": 1, "tensor_parallel_size": 4}
    (tmp_path / "serve.yaml").write_text("model: M\nseed: 23\n")
    with pytest.raises(pytest.fail.Exception, match="imported again"):
        command("vllm serve --config serve.yaml -tp 4")


def test_exactly_what_was_typed_is_typed_whatever_the_purpose(command):
    read, dummy = command(f"vllm serve {MIXED}"), command("vllm serve M --load-format dummy --tokenizer T --revision main")

    typed = {"engine.dtype", "engine.tensor_parallel_size", "engine.seed", "engine.head_dtype"}
    for purpose in ("serve", "rollout", "eval"):
        config = read.config(purpose=purpose)
        assert (config.slots()["engine.load_format"], config.typed_slots()) == ("auto", typed)
    assert (config.model.path, config.engine.head_dtype, config.engine.hf_overrides) == ("M", "float32", None)
    assert dummy.config(purpose="rollout").slots()["engine.load_format"] == "dummy"
    assert dummy.config().model == ModelSection(path="M", tokenizer="T", revision="main")


def test_a_server_owns_its_data_parallel_ranks(command):
    owner, rank = (command(f"vllm serve M -dp 2{more}").config() for more in ("", " --data-parallel-rank 1"))

    assert owner.parallel.dp_strategy == "engine"
    assert rank.parallel.dp_strategy is None


def test_settings_are_laid_over_the_command(command):
    config = command("vllm serve M -tp 2").config(settings=["refit.scope=state_dict", "engine.tensor_parallel_size=4"])

    assert (config.refit.scope, config.engine.tensor_parallel_size) == ("state_dict", 4)
    assert "/" in command("vllm serve --seed 1").model  # without one it is vLLM's default
    with pytest.raises(UsageError, match=r"engine\.tensor_parallel_size"):
        command("vllm serve M -tp 0").config()


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve M --seed 3",
        "python -m vllm.entrypoints.openai.api_server --model M --seed 3",
        "python3.11 -u -m vllm.entrypoints.cli.main serve M --seed 3",
        "env VLLM_USE_V1=1 HF_HOME=/x=y vllm serve M --seed 3",
    ],
)
def test_all_ways_to_start_a_server_are_read(command, text):
    read = command(text)

    assert (read.model, read.arguments["seed"]) == ("M", 3)
    assert read.config().env.get("VLLM_USE_V1") == ("1" if "VLLM_USE_V1" in text else None)


@pytest.mark.parametrize("text", ["vllm bench latency", "sglang serve M", "python script.py --api-key hush", ""])
def test_what_starts_no_server_is_an_error_that_shows_no_value(command, text):
    with pytest.raises(UsageError, match="starts no server") as error:
        command(text)

    assert "hush" not in str(error.value)


@pytest.mark.parametrize("line", REFUSED)
def test_what_vllm_would_not_take_is_an_error_in_its_words(command, line):
    with pytest.raises(UsageError, match=REFUSED[line]):
        command(f"vllm serve {line}")


# ---- other installations


def test_a_command_cannot_be_read_without_a_vllm(command, monkeypatch, forget_sources):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    forget_sources()

    with pytest.raises(UsageError, match="describe the run by --model and --set instead"):
        command("vllm serve M")

    monkeypatch.undo()
    forget_sources()


# ---- the options of `vllm serve`, read from its source, beside those of vLLM's own parser

#: Every option that vLLM's parser has, and how many words it takes.
_REFERENCE = """
import argparse, json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser().add_subparsers(dest="subparser").add_parser("serve"))
actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
shapes = {None: "value", "?": "value", 0: "switch"}

def shape(action):
    return "flag" if isinstance(action, argparse.BooleanOptionalAction) else shapes.get(action.nargs, "values")

found = [[action.option_strings, shape(action)] for action in actions]
"""


def test_every_option_of_the_installed_vllm_is_known():
    theirs = {tuple(sorted(names)): shape for names, shape in fork_server.run(_REFERENCE)}
    ours = {}
    for option in INSTALLED.options():
        negations = [f"--no-{name[2:]}" for name in option.names if name.startswith("--") and option.shape is Shape.FLAG]
        ours[tuple(sorted([*option.names, *negations]))] = option.shape.value

    assert ours == theirs
    assert len(ours) > 200
