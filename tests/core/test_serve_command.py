"""The command line of ``vllm serve``, read without vLLM, beside what vLLM's own parser makes of it."""

from __future__ import annotations

import sys

import fork_server
import pytest

from quirks_core.base.errors import UsageError
from quirks_core.configuration.serve_command import read_serve_command
from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import INSTALLED

pytestmark = pytest.mark.skipif(INSTALLED.arguments.names() is None, reason="the options are read from the installed vLLM")

#: What vLLM's parser makes of command lines, and every option that it has.
_REFERENCE = """
import argparse, json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

def parser():
    root = FlexibleArgumentParser()
    return root, make_arg_parser(root.add_subparsers(dest="subparser").add_parser("serve"))

parsed = []
for line in lines:
    found = vars(parser()[0].parse_args(["serve", *line.split()]))
    found["model"] = found.pop("model_tag") or found["model"]
    parsed.append(found)
actions = [action for action in parser()[1]._actions if action.option_strings and action.dest != "help"]
shapes = {None: "value", "?": "optional", 0: "switch"}

def shape(action):
    return "flag" if isinstance(action, argparse.BooleanOptionalAction) else shapes.get(action.nargs, "values")

options = [[action.option_strings, shape(action)] for action in actions]
found = json.loads(json.dumps({"parsed": parsed, "options": options}, default=repr))
"""

#: Command lines after ``vllm serve``, in which every engine argument that is typed has a plain value.
LINES = {
    "model alone": "M",
    "dashes and underscores": "M --max-model-len 128 --max_num_seqs 4 --gpu_memory_utilization=0.5",
    "short names": "M -tp 2 -dp 2 -pp 1 -q awq -ep -n 1 -r0",
    "short names with an equals sign": "M -tp=2",
    "flags": "M --enforce-eager --no-enable-prefix-caching --enable_chunked_prefill --no-async_scheduling",
    "options before the model": "--enforce-eager --dtype bfloat16 M",
    "multiples": "M --max-model-len 1k --max-num-batched-tokens 2K",
    "the last one counts": "M --dtype float32 --dtype bfloat16 --enforce-eager --no-enforce-eager",
    "mappings": 'M --hf-overrides {"a":1} --additional-config {"b":{"c":[1,"x"]}}',
    "mappings key by key": "M --hf-overrides.head_dtype float32 --hf_overrides.rope.factor=2.5 --hf-overrides.layers+ 1,2",
    "lists": "M --served-model-name one two --seed 7",
    "text that is no number": "M --tokenizer some/tokenizer --revision 123 --load-format dummy",
    "None": "M --quantization None",
    "a beginning of a name": "M --tensor-par 2 --enforce-e",
    "options of the server": "M --port 80 --api-key secret --disable-uvicorn-access-log --headless -asc 2 --seed 1",
    "lists of the server": 'M --allowed-origins ["*"] --middleware a.b --middleware c.d --lora-modules x=y z=w --seed 1',
    "levels": "M -O2 --seed 1",
    "levels apart": "M -O 1 --seed 1",
    "a choice beside free text": "M --logprobs-mode processed_logprobs --tokenizer-mode slow",
    "negative": "M --seed -3",
    "the model as an option": "--model M --dtype float32",
}


@pytest.fixture(scope="module")
def reference():
    """What vLLM's parser says: by command line, and of its options."""
    return fork_server.run(_REFERENCE, lines=list(LINES.values()))


def test_every_option_of_the_installed_vllm_is_known_by_its_names_and_the_words_it_takes(reference):
    theirs = {tuple(sorted(names)): shape for names, shape in reference["options"]}
    ours = {}
    for option in INSTALLED.options():
        negations = [f"--no-{name[2:]}" for name in option.names if name.startswith("--") and option.shape is Shape.FLAG]
        ours[tuple(sorted([*option.names, *negations]))] = option.shape.value

    assert ours == theirs
    assert len(ours) > 200


@pytest.mark.parametrize("name", LINES)
def test_typed_values_are_those_of_vllms_own_parser(name, reference):
    theirs = reference["parsed"][list(LINES).index(name)]

    ours = read_serve_command(["vllm", "serve", *LINES[name].split()])

    assert ours.arguments == {key: theirs[key] for key in ours.arguments}
    assert ours.model == theirs["model"] == "M"
    untyped = read_serve_command(["vllm", "serve", "M"]).arguments
    default = reference["parsed"][0]
    changed = {key for key in theirs if theirs[key] != default[key]} & {option.argument for option in INSTALLED.options()}
    assert changed <= ours.arguments.keys()
    assert untyped == {"model": "M"}


def command(text: str):
    return read_serve_command(text.split())


def test_exactly_what_was_typed_is_typed_and_the_weights_are_loaded_whatever_the_purpose():
    read = command("vllm serve M --dtype bfloat16 -tp 2 --seed 0 --hf-overrides.head_dtype float32 --port 1234")

    typed = {"engine.dtype", "engine.tensor_parallel_size", "engine.seed", "engine.head_dtype"}
    assert read.config().typed_slots() == typed
    assert read.config().purpose == "serve"
    for purpose in ("serve", "rollout", "eval"):
        config = read.config(purpose=purpose)
        assert (config.slots()["engine.load_format"], config.typed_slots()) == ("auto", typed)
    assert (config.model.path, config.engine.head_dtype, config.engine.hf_overrides) == ("M", "float32", None)


def test_a_load_format_that_was_typed_stays():
    config = command("vllm serve M --load-format dummy").config(purpose="rollout")

    assert config.slots()["engine.load_format"] == "dummy"
    assert config.typed_slots() == {"engine.load_format"}


def test_tokenizer_and_revision_say_which_model():
    model = command("vllm serve M --tokenizer T --revision main").config().model

    assert (model.path, model.tokenizer, model.revision) == ("M", "T", "main")


def test_a_server_owns_its_data_parallel_ranks_unless_it_is_one_of_them():
    owner, rank = (command(f"vllm serve M -dp 2 {more}").config() for more in ("", "--data-parallel-rank 1"))

    assert owner.parallel.dp_strategy == "engine"
    assert rank.parallel.dp_strategy is None


def test_secrets_and_lengths_that_are_left_to_vllm_are_no_slots():
    config = command("vllm serve M --hf-token abc --max-model-len auto").config()

    assert config.typed_slots() == frozenset()
    assert "abc" not in config.model_dump_json()


def test_settings_are_laid_over_the_command():
    config = command("vllm serve M -tp 2").config(settings=["refit.scope=state_dict", "engine.tensor_parallel_size=4"])

    assert (config.refit.scope, config.engine.tensor_parallel_size) == ("state_dict", 4)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve M --seed 3",
        "/opt/venv/bin/vllm serve M --seed 3",
        "python -m vllm.entrypoints.openai.api_server --model M --seed 3",
        "python3.11 -u -m vllm.entrypoints.cli.main serve M --seed 3",
        "env VLLM_USE_V1=1 vllm serve M --seed 3",
        "VLLM_USE_V1=1 HF_HOME=/x=y vllm serve M --seed 3",
    ],
)
def test_all_ways_to_start_a_server_are_read(text):
    read = command(text)

    assert (read.model, read.arguments["seed"]) == ("M", 3)
    assert read.config().env.get("VLLM_USE_V1") == ("1" if "VLLM_USE_V1" in text else None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm bench latency", "starts no server"),
        ("sglang serve M", "starts no server"),
        ("python script.py", "starts no server"),
        ("vllm serve M --enforce-eagr", r"no option or argument --enforce-eagr; did you mean '--enforce-eager'\?"),
        ("vllm serve M extra", "no option or argument extra"),
        ("vllm serve M -tp", "expected one argument"),
        ("vllm serve M -tp two", "invalid value value: 'two'"),
        ("vllm serve M --logprobs-mode processed", "takes one of .*processed_logprobs"),
        ("vllm serve M --hf-overrides {", "not valid JSON"),
        ("vllm serve M --enable-p", "ambiguous option"),
        ("vllm serve M --config=x.yaml", "write --config FILE, with a space"),
        ("vllm serve M --config", "names one file"),
        ("vllm serve M --config /no/such.yaml", "cannot be read"),
    ],
)
def test_what_vllm_would_not_take_is_an_error(text, message):
    with pytest.raises(UsageError, match=message):
        command(text)


def test_an_error_shows_no_value_of_an_option():
    with pytest.raises(UsageError, match=r"'python serve\.py' starts no server") as error:
        command("python serve.py --api-key hush")

    assert "hush" not in str(error.value)


def test_no_command_is_an_error():
    with pytest.raises(UsageError, match="starts no server"):
        read_serve_command([])


def test_a_value_that_no_engine_takes_is_an_error_of_the_configuration():
    with pytest.raises(UsageError, match=r"engine\.tensor_parallel_size"):
        command("vllm serve M -tp 0").config()


def test_without_a_model_it_is_vllms_default_model():
    assert "/" in command("vllm serve --seed 1").model


# ---- configuration files

_FILE = """
model: M
tensor-parallel-size: 2
max_model_len: 64
enforce-eager: true
enable-prefix-caching: false
headless: false
hf-overrides: {head_dtype: float32}
served-model-name: [a, b]
port: 9000
"""


def test_a_file_is_read_as_vllm_reads_it_and_the_command_line_is_stronger(tmp_path):
    (tmp_path / "serve.yaml").write_text(_FILE)

    alone = command(f"vllm serve --config {tmp_path}/serve.yaml")
    both = command(f"vllm serve N --config {tmp_path}/serve.yaml -tp 4")

    engine = {
        "tensor_parallel_size": 2,
        "max_model_len": 64,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "hf_overrides": {"head_dtype": "float32"},
        "served_model_name": ["a", "b"],
    }
    assert alone.arguments == {"model": "M", **engine}
    assert both.arguments == {"model": "N", **engine, "tensor_parallel_size": 4}


def test_an_unknown_key_of_a_file_is_an_error_with_the_nearest(tmp_path):
    (tmp_path / "serve.yaml").write_text("model: M\nmax_model_length: 3\n")

    with pytest.raises(UsageError, match="max-model-length; did you mean '--max-model-len'"):
        command(f"vllm serve --config {tmp_path}/serve.yaml")


# ---- other installations


def test_without_a_vllm_the_options_are_unknown_and_the_error_says_what_to_type_instead(monkeypatch, forget_sources):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    forget_sources()

    with pytest.raises(UsageError, match="describe the run by --model and --set instead"):
        command("vllm serve M")

    monkeypatch.undo()
    forget_sources()


def test_options_of_an_older_vllm_are_read_from_where_that_keeps_them(site, forget_sources, monkeypatch):
    """A tiny package laid out as vLLM before 0.29: the server's options are in another module."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:  # of tests with engines
        monkeypatch.delitem(sys.modules, name)
    files = {
        "vllm/__init__.py": "",
        "vllm/engine/arg_utils.py": _OLD_ENGINE,
        "vllm/entrypoints/openai/cli_args.py": _OLD_SERVER,
    }
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    forget_sources()

    read = command("vllm serve M -bs 16 --flag --port 1 --hosts a b")

    assert read.arguments == {"model": "M", "block_size": 16, "flag": True}
    assert {option.name for option in INSTALLED.options()} == {
        "--model",
        "--block-size",
        "--flag",
        "--port",
        "--hosts",
        "--headless",
    }


_OLD_ENGINE = """
class EngineArgs:
    model: str = "default/model"
    block_size: int | None = None
    flag: bool = False

    @staticmethod
    def add_cli_args(parser):
        group = parser.add_argument_group()
        group.add_argument("--model", **kwargs["model"])
        group.add_argument("--block-size", "-bs", **kwargs["block_size"])
        group.add_argument("--flag", **kwargs["flag"])
"""
_OLD_SERVER = """
class FrontendArgs:
    port: int = 8000
    hosts: list[str] | None = None

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless", action="store_true")
"""
