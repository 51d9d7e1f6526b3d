"""The lines of the hook: at most ten with the receipt's, what matters most first, and advice for what it cannot enforce."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from quirks_core import Advise, Affected, Default, ModelFlag, Patch, Require, package, setting
from quirks_core.declaration.quirk import Location
from quirks_core.hook.explicit import Typed
from quirks_core.hook.report import log_plan, log_receipt
from quirks_core.plan.receipt import Acknowledgement, Effect, Receipt
from quirks_core.source.vllm_source import INSTALLED

TYPED = Typed(frozenset({"dtype"}), "command line", exact=True)
TWENTY = [Default(f"engine.argument_{n}", n) for n in range(20)]


@pytest.fixture
def lines(caplog):
    """Runs something that logs; returns its lines."""

    def run(call, *arguments, **named):
        with caplog.at_level(logging.INFO, "model_quirks"):
            caplog.clear()
            call(*arguments, **named)
        return [record.getMessage().removeprefix("model-quirks: ") for record in caplog.records]

    return run


@pytest.mark.parametrize(
    "program",
    [
        "",
        "logging.basicConfig(level='INFO')",
        "logging.basicConfig(); from model_hosting_container_standards import logging_config as it; it.configure_root_logger()",
    ],
)
def test_each_line_reaches_standard_error_once_however_the_program_has_set_up_logging(program):
    calls = "info('one'); error('two'); info('three')"
    script = f"import logging; {program}\nfrom quirks_core.hook.report import error, info\n{calls}"

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert [run.stderr.count(f"model-quirks: {text}") for text in ("one", "two", "three")] == [1, 1, 1]


def test_what_nobody_examined_is_named_and_in_a_quiet_log_counted(lines, make_plan, make_quirk, make_context):
    built_in = Location("quirks_plugins/x.py", 1, "quirks_plugins.x")  # of third parties' quirks nobody examined anything
    quirk = make_quirk(affected=Affected("vllm", introduced="0.26"), location=built_in)
    plan = make_plan(quirk, context=make_context(packages={"vllm": "0.22.0"}))

    assert "  warning: not examined on vllm 0.22.0, and therefore off: example" in lines(log_plan, plan, TYPED, "why")
    (quiet,) = lines(log_plan, plan, TYPED, "why", quiet=True)
    assert quiet.endswith(": no quirk; 1 not examined")


def test_the_first_line_describes_the_run(lines, plan_of):
    first, *_ = lines(log_plan, plan_of(Default("engine.seed", 3)), TYPED, "MODEL_QUIRKS=rollout")

    assert first.endswith("to tiny-qwen3, purpose rollout (MODEL_QUIRKS=rollout); typed: known exactly (command line): dtype")


@pytest.mark.parametrize("only_reports", [False, True])
@pytest.mark.parametrize("purpose", ["serve", "eval"])
def test_a_plan_that_changes_nothing_is_an_all_clear_in_one_line(lines, plan_of, purpose, only_reports):
    plan = plan_of(Default("engine.seed", 3), purpose=purpose)  # of a quirk that concerns rollouts alone

    (line,) = lines(log_plan, plan, TYPED, "told", only_reports=only_reports)

    assert line.endswith("; all clear, checked: 1 quirk for vLLM 0.32.0 on cpu, none changes anything")


def test_advice_on_precision_comes_first(lines, make_quirk, make_plan):
    others = make_quirk(
        id="a", adjustments=[Default("engine.seed", 3), Require("refit.scope", "state_dict"), Advise("careful")]
    )
    precision = make_quirk(id="z", flag=ModelFlag.DTYPE, adjustments=Advise("float16 on both sides"))

    assert lines(log_plan, make_plan(others, precision), TYPED, "told")[1] == "  advised: z: float16 on both sides"


def test_the_lines_begin_with_warnings_then_list_changes_before_advice(lines, plan_of):
    plan = plan_of(
        Default("engine.enforce_eager", True, reason="it is better"),
        Default("refit.clear_cache", True, reason="one policy"),
        Require("refit.scope", "state_dict", reason="buffers get lost"),
        Default("sampling.top_k", 5, reason="five"),
        Default("engine.seed", 3),
        typed={"engine.seed": 4},
    )

    found = lines(log_plan, plan, TYPED, "told")[1:]

    assert found[1] == "  in force: engine.enforce_eager = True (q0: it is better)"
    assert found[0].startswith("  warning: nothing here enforces refit.scope = state_dict: send model.state_dict() instead of ")
    assert found[0].endswith("(q2: buffers get lost; without it: Something goes wrong)")
    assert found[2].startswith("  advised: refit.clear_cache = true: await engine.pause_generation(clear_cache=True)")
    assert found[3] == "  advised: sampling.top_k = 5: SamplingParams(top_k=5), or 'top_k' in the request (q3: five)"
    assert found[4] == "  kept: engine.seed = 3 (q4: the user typed 4, which wins over a default)"


def test_what_is_not_decided_for_want_of_the_trainers_facts_is_one_line(lines, plan_of):
    undecided = [Advise("careful", when=setting(name).one_of("parameters")) for name in ("refit.scope", "refit.transport")]
    plan = plan_of(*undecided, undeclared=frozenset({"refit.scope", "refit.transport", "train.dtype"}))

    (line,) = lines(log_plan, plan, TYPED, "told")
    assert "; undecided: 2 quirks, without refit.scope, refit.transport; MODEL_QUIRKS_SET='slot=value;…' supplies" in line
    assert lines(log_plan, plan, TYPED, "told", only_reports=True)[1:3] == [
        "  undecided without refit.scope: q0",
        "  undecided without refit.transport: q1",
    ]


def test_a_quiet_log_counts_what_it_does_not_list(lines, plan_of):
    plan = plan_of(
        Advise("careful", when=package("ray", introduced="2.0")), Default("request.timeout_s", 7.0), Default("engine.seed", 3)
    )

    (line,) = lines(log_plan, plan, TYPED, "told", quiet=True)

    assert line.endswith("; 1 setting, 0 patches: q2; 1 advised, 1 undecided")


@pytest.fixture
def patches(write_modules):
    """Patches of a module's functions."""
    write_modules(
        {"fake_engine.py": "def start():\n    return 1\n\n\ndef step():\n    return 1\n\n\ndef stop():\n    return 1\n"}
    )
    targets = [f"fake_engine:{name}" for name in ("start", "step", "stop")]
    return [Patch(target, wrapper="mine:wrap", expects=INSTALLED.fingerprint(target)) for target in targets]


def test_patches_share_one_line_that_is_never_cut(lines, plan_of, patches):
    found = lines(log_plan, plan_of(patches[:2], patches[2], *TWENTY), TYPED, "told")

    assert "  in force: 3 patches: q0, q1 ('quirks explain ID --model …' has the reason)" in found
    assert len(found) == 9


def test_a_patch_that_is_alone_has_a_line_with_its_reason_as_each_has_in_a_report(lines, plan_of, patches):
    alone, every = lines(log_plan, plan_of(patches[0]), TYPED, "told"), plan_of(patches)
    shown = lines(log_plan, every, TYPED, "told", only_reports=True)

    assert any(line.startswith("  in force: patch start (q0: ") for line in alone)
    in_force = [line.split(" (")[0] for line in shown if "in force: " in line]
    assert in_force == [f"  in force: patch {name}" for name in ("start", "step", "stop")]


def test_a_log_is_cut_after_nine_lines(lines, plan_of):
    plan = plan_of(*TWENTY)

    assert len(lines(log_plan, plan, TYPED, "told")) == 9
    assert lines(log_plan, plan, TYPED, "told")[-1] == "  and 13 more lines, which MODEL_QUIRKS=report prints"


def test_lines_about_kept_values_or_warnings_are_never_cut(lines, plan_of):
    kept = {f"engine.kept_{n}": n for n in range(5)}
    warned = [Advise(f"careful {n}") for n in range(6)]
    plan = plan_of(*TWENTY[:12], *(Default(slot, 9) for slot in kept), *warned, typed=kept)

    found = lines(log_plan, plan, TYPED, "told")[1:]

    assert sum(line.startswith("  kept: ") for line in found) == len(kept)
    assert sum("careful" in line for line in found) == len(warned)
    assert found[-1] == "  and 12 more lines, which MODEL_QUIRKS=report prints"


def test_a_value_that_leaves_its_argument_to_vllm_is_not_listed_as_typed(lines, plan_of):
    plan = plan_of(typed={"engine.seed": 3}, untyped={"engine.dtype": "auto"})

    (line,) = lines(log_plan, plan, Typed(frozenset({"dtype", "seed"}), "command line", exact=True), "told")

    assert "typed: known exactly (command line): seed; all clear" in line


def test_a_receipt_is_one_line_with_every_value_that_was_read_back(lines):
    patch = Effect(slot="patch.vllm.envs:f", before="0", after="acme:f")
    rows = [
        Acknowledgement(
            pid=pid, process=name, digest="d" * 64, engine={"engine.seed": 3, "engine.dtype": "float32"}, effects=(patch,)
        )
        for pid, name in ((7, "EngineCore"), (8, "Worker"))
    ]
    receipt = Receipt(digest="d" * 64, host="here", changes={"engine.seed": 3}, processes=tuple(rows))

    (line,) = lines(log_receipt, receipt, {"engine.dtype", "engine.seed"})
    assert line == (
        "receipt: plan dddddddddddd is in force in EngineCore (7), Worker (8): 1 patch; "
        "read back: engine.dtype = float32, engine.seed = 3"
    )


def test_what_the_user_has_set_already_is_no_change(lines, plan_of):
    plan = plan_of(Default("engine.seed", 3), typed={"engine.seed": 3})

    (line,) = lines(log_plan, plan, TYPED, "told")
    assert "; all clear, checked: 1 quirk for vLLM 0.32.0 on cpu, none changes anything; " in line
    assert line.endswith("; set already: engine.seed = 3 (q0: the user typed the same value)")


def test_a_report_is_never_cut(lines, plan_of):
    plan = plan_of(*TWENTY)

    assert len(lines(log_plan, plan, TYPED, "told", only_reports=True)) == 21


def test_a_report_says_what_would_be_refused(lines, plan_of):
    plan = plan_of(Require("engine.seed", 3), typed={"engine.seed": 4})

    first, second, *_ = lines(log_plan, plan, TYPED, "told", only_reports=True)

    assert first.startswith("would apply ")
    assert second.startswith("  would be refused: q0 ")
