"""``quirks plan``: what applies to a run and why, in every process and in the worker alike."""

from __future__ import annotations

import importlib
import re

import pytest
from declarations import declared
from installed import needs_vllm

from worker import GenerationConfig

GEMMA = "gemma3_text"


@needs_vllm
@pytest.mark.parametrize("parallel", ["", "engine: {data_parallel_size: 2}\nparallel: {dp_strategy: engine}\n"])
def test_the_worker_makes_the_plan_that_the_command_line_shows(quirks, model, tmp_path, parallel):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {model('qwen3_moe', num_experts=8)}\n{parallel}", encoding="utf-8")

    worker = importlib.import_module("worker").VllmAsyncGenerationWorker(GenerationConfig.load(file))

    assert worker.plan.digest == quirks("plan", "--config", file, "--json").json["digest"]


def test_a_plain_plan_fits_a_screen(quirks, model):
    """The verdict comes first, then for whom it is; cures are named by what goes wrong without them."""
    first, whom, *others = quirks("plan", "--model", model(GEMMA)).out.splitlines()

    assert first == "fine: there is nothing to do"
    assert ", purpose rollout, for our worker, plan " in whom
    assert any(line.split(maxsplit=1)[0] == "generation-config-leak" and "inherit penalties" in line for line in others)
    assert any(line.startswith("features: async-rollout-timeout, ") for line in others)


def test_a_verbose_plan_groups_all_by_what_became_of_it(quirks, model, install):
    install("acme-cache", declared("acme-cache", match='purpose("rollout")', supersedes='("in-flight-update-cache",)'))
    planned = quirks("plan", "--model", model(GEMMA), "--vllm", "0.32.0", "--disable", "logprobs", "--verbose").out

    found = dict(re.findall(r"^([a-z][a-z ]+)(?::.*)?\n((?:  .*\n)+)", planned, re.M))
    assert list(found) == ["in force", "dormant", "superseded", "disabled"]
    assert re.search(r"^  async-rollout-timeout +request.timeout_s ≥ 600.0$", found["in force"], re.M)
    assert re.search(r"^  gemma-normalizer-dummy-load +packages.vllm: wanted < 0.9.2, got 0.32.0", found["dormant"], re.M)
    assert re.search(r"^  rollout-logprobs-processed +switched off by 'logprobs'", found["disabled"], re.M)


SERVE = ("plan", "--purpose", "rollout", "--trainer", "serve", "--model")


def test_what_only_the_program_can_do_comes_first(quirks, model):
    """An undecided quirk of this model has a line with the option that decides it; the others share one."""
    shown = quirks(*SERVE, model("gemma4")).out.splitlines()

    own, rest = [line for line in shown if line.startswith("undecided: ")]
    assert shown[0].startswith("do this: ")
    assert ", for vllm serve, plan " in shown[1]
    assert own.startswith("undecided: rollout-precision: A rollout ")
    assert "; decided by --set train." in own
    assert re.match(r"undecided: \d+ quirks: decided by --(set|assume) .* and \d+ more$", rest)
    assert len(shown) <= 20


@needs_vllm
@pytest.mark.parametrize("trainer", [(), ("--trainer", "worker"), ("--trainer", "serve"), ("--trainer", "trl")], ids=" ".join)
def test_a_plain_plan_is_at_most_20_lines(quirks, model, monkeypatch, trainer):
    monkeypatch.setenv("COLUMNS", "100")

    shown = quirks("plan", "--model", model(), *trainer).out

    assert len(shown.splitlines()) <= 20


def test_a_plan_shows_only_what_a_run_of_that_trainer_gets(quirks, model):
    """What schedules for our worker is no trainer's; TRL sets the mode of logprobs itself, and sends parameters."""
    ours, trl, served = (
        quirks("plan", "--model", model(), "--trainer", name, "--json").json for name in ("worker", "trl", "serve")
    )

    active = [{one["id"] for one in plan["verdicts"] if one["state"] == "active"} for plan in (ours, trl, served)]
    assert "decode-slots" in active[0] - active[1] - active[2]
    assert (trl["context"]["settings"]["refit.scope"], trl["changes"].get("engine.logprobs_mode")) == ("parameters", None)
    assert [plan["context"]["purpose"] for plan in (ours, trl, served)] == ["rollout", "rollout", "serve"]
    assert "train.sequence_packing" in trl["undecided"]
    assert "--set train." not in quirks("plan", "--model", model(), "--trainer", "trl").out  # its user sets none


@needs_vllm
def test_trl_starts_an_engine_in_its_process_or_a_server(quirks, model):
    ways = ("--model", model()), ("--", "vllm", "serve", model())

    runs = [quirks("plan", "--trainer", "trl", "--json", *way).json["context"] for way in ways]

    assert [run["settings"].get("engine.distributed_executor_backend") for run in runs] == ["external_launcher", None]
    assert [run["purpose"] for run in runs] == ["rollout"] * 2


@needs_vllm
def test_what_of_a_quirk_is_undecided_is_named(quirks, model, install):
    """The title would read as if nothing of it were in force."""
    adjustments = '[Default("engine.seed", 3), Default("engine.max_num_seqs", 8, when=setting("sampling.top_k").above(0))]'
    install("acme-partly", declared("acme-partly", match='purpose("rollout")', adjustments=adjustments))
    shown, whole = (quirks("plan", "--trainer", "trl", "--model", model(), *more).out for more in ((), ("--verbose",)))

    assert "undecided: acme-partly: in force but for one condition; decided by --set sampling.top_k=…\n" in shown
    assert not any("rollout-logprobs-processed" in line for line in shown.splitlines() if line.startswith("undecided"))
    assert any("rollout-logprobs-processed" in line for line in whole.splitlines() if "undecided" in line)


@needs_vllm
def test_a_plan_for_a_trainer_names_what_tells_a_run_with_lora(quirks, model):
    plan = ("plan", "--trainer", "trl", "--model", model(), "--set", "train.dtype=bfloat16")

    plain, merged, sent = (
        quirks(*plan, *more).out
        for more in ((), ("--set", "train.trainable_dtype=float32"), ("--set", "engine.enable_lora=true"))
    )

    assert "undecided: trl-merge-drift: TRL merges adapters into a 16-bit base" in plain
    assert [text.count("with LoRA add --set engine.enable_lora=true") for text in (plain, merged, sent)] == [1, 0, 0]
    assert "advised: trl-merge-drift" in merged


def test_a_verbose_plan_says_once_what_decides_or_costs_each_quirk(quirks, model):
    short, whole = (quirks(*SERVE, model(), *more).out for more in ([], ["--verbose"]))
    planned = quirks(*SERVE, model(), "--json").json

    undecided = [note for note in planned["warnings"] if note["kind"].startswith("undecided")]
    assert planned["undecided"].keys() == {fact for note in undecided for fact in note["about"]}
    assert [whole.count(note["text"]) for note in undecided] == [1] * len(undecided)
    assert "\nundecided: --set train.sequence_parallel=…: decides cp-sequence-parallel\n" in whole
    in_force = {name for entry in planned["in_force"] for name in entry["quirks"]}
    costs = [verdict["cost"] for verdict in planned["verdicts"] if verdict["id"] in in_force and verdict["cost"]]
    assert costs
    assert [len(re.findall(rf"^ +cost: {re.escape(cost)}$", whole, re.M)) for cost in costs] == [1] * len(costs)
    assert " cost: " not in short


@pytest.mark.parametrize(
    ("assumed", "platform", "gpu"),
    [(["gpu==8.0"], "cuda", 80), (["platform==cuda"], "cuda", 90), (["cpu == amx"], "cpu", None)],
)
def test_a_gpu_that_is_not_here_can_be_planned_for(quirks, model, monkeypatch, assumed, platform, gpu):
    """Where none is seen, an H100."""
    monkeypatch.setattr("quirks_core.cli.options.gpu_capability", lambda: None)

    context = quirks("plan", "--model", model(), "--assume", *assumed, "--json").json["context"]

    assert (context["platform"], context["gpu"], "amx" in (context["cpu"] or ())) == (platform, gpu, platform == "cpu")


def test_a_plan_advises_only_what_is_not_put_into_force(quirks, model):
    hook = quirks("plan", "--json", *SERVE[1:], model())
    ours = quirks("plan", "--json", "--model", model(), "--set", "train.sequence_packing=true")

    assert [entry["what"] for entry in hook.json["advised"]] == ["request.timeout_s = 600.0"]
    assert {entry["what"] for entry in hook.json["in_force"] if entry["what"].startswith(("request.", "refit."))} == set()
    assert "request.timeout_s ≥ 600.0" in {entry["what"] for entry in ours.json["in_force"]}
    assert [entry["what"] for entry in ours.json["advised"]] == ["train.attn_implementation = flash_attention_2"]
    assert all(entry.keys() == {"quirks", "what", "why", "how", "required"} for entry in hook.json["in_force"])


def test_a_refused_plan_shows_every_reason_with_its_ways_out(quirks, model):
    settings = ("train.context_parallel_size=2", "train.sequence_packing=true", "engine.load_format=dummy")

    planned = quirks("plan", "--model", model(GEMMA), "--vllm", "0.9.1", *(word for one in settings for word in ("--set", one)))

    assert planned.code == 1
    for quirk in ("gemma-normalizer-dummy-load", "cp-gemma3", "cp-sequence-packing"):
        assert f"refused: {quirk}" in planned.out
        assert f"override: --disable {quirk}" in planned.out
    assert planned.out.count("remedy:") == 3


# ---- forms to paste, and command lines of servers


def test_nothing_of_a_refused_run_or_of_several_can_be_pasted(quirks, model):
    paste = ("plan", "--model", model("gemma4"), "--format", "vllm-args")
    unsent = ("--set", "refit.scope=parameters", "--set", "engine.load_format=dummy")
    refused, several = quirks(*paste, *unsent), quirks(*paste, "--vllm", "0.9,0.32")

    assert (several.code, "--format prints one plan" in several.err) == (2, True)
    assert (refused.code, refused.out) == (1, "")
    assert "refused: gemma4-layer-scalar" in " ".join(refused.err.split())


def test_standard_output_holds_only_the_options_to_paste(quirks, model):
    planned = quirks("plan", "--model", model(), "--format", "vllm-args")

    assert (planned.code, len(planned.out.splitlines())) == (0, 1)
    assert "--logprobs-mode processed_logprobs" in planned.out
    assert planned.err
    assert all(line.startswith("# ") for line in planned.err.splitlines())
