"""The lines of the hook: in the words of a plan, what is to be done first; one line for what changes nothing."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from installed import needs_vllm

from quirks_core import Advise, Affected, Default, Kind, ModelFlag, Require, package, setting
from quirks_core.declaration.quirk import Location
from quirks_core.hook.explicit import Typed
from quirks_core.hook.report import log_plan, log_receipt
from quirks_core.plan.receipt import Acknowledgement, Effect, Receipt
from quirks_core.reporting.plan import findings

TYPED = Typed(frozenset({"dtype"}), exact=True)


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
        pytest.param(
            "logging.basicConfig();"
            "from model_hosting_container_standards import logging_config as it; it.configure_root_logger()",
            marks=needs_vllm,
        ),
    ],
)
def test_each_line_reaches_standard_error_once(program):
    """However the program has set up logging."""
    calls = "info('one'); error('two'); info('three')"
    script = f"import logging; {program}\nfrom quirks_core.hook.report import error, info\n{calls}"

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert [run.stderr.count(f"model-quirks: {text}") for text in ("one", "two", "three")] == [1, 1, 1]


def test_what_nobody_examined_is_named_in_a_quiet_log_counted(lines, make_plan, make_quirk, make_context):
    built_in = Location("quirks_plugins/x.py", 1, "quirks_plugins.x")  # of third parties' quirks nobody examined anything
    quirk = make_quirk(affected=Affected("vllm", introduced="0.26"), location=built_in)
    plan = make_plan(quirk, context=make_context(packages={"vllm": "0.22.0"}))

    (line,) = lines(log_plan, plan, TYPED, "why")
    assert line.endswith("; warning: not examined on vllm 0.22.0, and therefore off: example")
    (quiet,) = lines(log_plan, plan, TYPED, "why", quiet=True)
    assert quiet.endswith(": no quirk; 1 not examined")


SEED, OPEN = Default("engine.seed", 3), ("refit.scope", "refit.transport")
QUIET = Advise("careful", when=package("ray", introduced="2.0")), Default("request.timeout_s", 7.0), SEED
CLEAR = "; all clear, checked: 1 quirk for vLLM 0.32.0 on cpu, none changes anything"


@pytest.mark.parametrize(
    ("wanted", "run", "typed", "options", "words"),
    [
        ((SEED,), {"purpose": "serve"}, {"dtype"}, {}, f"; you set: dtype{CLEAR}"),  # a quirk that concerns rollouts alone
        ((SEED,), {"purpose": "serve"}, {}, {"only_reports": True}, f"; you set: nothing{CLEAR}"),
        ((SEED,), {"purpose": "serve"}, {"dtype", "seed"}, {}, f"; you set: dtype, seed{CLEAR}"),
        ((SEED,), {"purpose": "serve", "untyped": {"engine.dtype": "auto"}}, {"dtype"}, {}, f"; you set: nothing{CLEAR}"),
        (
            [Advise("careful", when=setting(name).one_of("parameters")) for name in OPEN],
            {"undeclared": frozenset({*OPEN, "train.dtype"})},
            {"dtype"},
            {},
            "; undecided: 2 quirks: decided by MODEL_QUIRKS_SET='refit.scope=…;refit.transport=…'",
        ),
        (QUIET, {}, {"dtype"}, {"quiet": True}, "; 1 setting, 0 patches: q2; 1 advised, 1 undecided"),
    ],
)
def test_a_plan_that_changes_nothing_or_a_quiet_log_is_one_line(lines, plan_of, wanted, run, typed, options, words):
    plan = plan_of(*wanted, **run)

    (line,) = lines(log_plan, plan, Typed(frozenset(typed), exact=True), "told", **options)
    if not options:
        (inexact,) = lines(log_plan, plan, Typed(frozenset(typed)), "told")
        assert inexact == line.replace("you set: ", "set other than vLLM's defaults: ")

    assert line.removeprefix("would apply to ").startswith(f"tiny-qwen3 (qwen3), purpose {plan.context.purpose} (told), plan ")
    assert line.endswith(words)


def test_the_lines_are_those_of_a_plan_what_is_to_do_comes_first(lines, make_quirk, make_plan, make_context):
    """Precision comes first, from which a run gains most; settings stand behind what goes wrong without them."""
    settings = [Default("engine.enforce_eager", True), Default("engine.seed", 3)]
    wanted = [*settings, Default("refit.clear_cache", True, reason="one policy"), Require("refit.scope", "state_dict")]
    quirks = [
        make_quirk(id="a", adjustments=wanted),
        make_quirk(id="f", kind=Kind.FEATURE, adjustments=Default("engine.dtype", "half")),
    ]
    quirks.append(make_quirk(id="z", flag=ModelFlag.DTYPE, adjustments=Advise("float16 on both sides")))
    plan = make_plan(*quirks, context=make_context(settings={"engine.seed": 4}, typed=frozenset({"engine.seed"})))

    found = lines(log_plan, plan, TYPED, "told")[1:]

    assert [line.split(": ")[:2] for line in found] == [
        ["  advised", "z"], ["  do", "a"], ["  advised", "a"], ["  kept", "a"], ["  in force", "a"], ["  features", "f"],
    ]  # fmt: skip
    assert "refit.scope = state_dict: send model.state_dict() instead of model.named_parameters()" in found[1]
    assert found[2].startswith("  advised: a: refit.clear_cache = true: await engine.pause_generation(clear_cache=True)")
    assert found[3] == "  kept: a: engine.seed = 3 (the user typed 4, which wins over a default)"
    assert found[4] == "  in force: a: without it: Something goes wrong (engine.enforce_eager = True)"
    assert [f"  {one}" for one in findings(plan)] == [line.replace("without it: Some", "Some") for line in found]


def test_what_no_user_of_a_trainer_can_set_is_not_undecided(lines, plan_of):
    """Its presets are what is known of it; how it computes its user may know better."""
    undecided = [Advise("careful", when=setting(name).one_of("parameters")) for name in ("refit.scope", "train.dtype")]
    plan = plan_of(*undecided, untyped={"train.framework": "trl"}, undeclared=frozenset({"refit.scope", "train.dtype"}))

    (line,) = lines(log_plan, plan, TYPED, "told")
    assert ", for trl, plan " in line
    assert "; undecided: q1: Something goes wrong; decided by MODEL_QUIRKS_SET='train.dtype=…'" in line
    assert "refit.scope" not in line


def test_cures_beyond_five_share_a_line_that_names_each(lines, plan_of):
    plan = plan_of(*(Default(f"engine.argument_{n}", n) for n in range(20)))

    short, whole = (lines(log_plan, plan, TYPED, "told", only_reports=only_reports)[1:] for only_reports in (False, True))

    assert len(short) == 6
    assert short[-1].startswith("  in force, too: q13, q14, ")
    assert short[-1].endswith(" (MODEL_QUIRKS=report lists them)")
    assert len(whole) == 20


def test_a_receipt_is_one_line_with_every_value_of_the_engine(lines):
    patch = Effect(slot="patch.vllm.envs:f", before="0", after="acme:f")
    rows = [
        Acknowledgement(
            pid=pid, process=name, digest="d" * 64, engine={"engine.seed": 3, "engine.dtype": "float32"}, effects=(patch,)
        )
        for pid, name in ((7, "EngineCore"), (8, "Worker"))
    ]
    receipt = Receipt(digest="d" * 64, host="here", changes={"engine.seed": 3}, processes=tuple(rows))

    (line,), (short,) = (lines(log_receipt, receipt, slots) for slots in ({"engine.dtype", "engine.seed"}, ()))
    assert short == "receipt: plan dddddddddddd is in force in EngineCore (7), Worker (8): 1 patch"
    assert line == f"{short}, engine.dtype = float32, engine.seed = 3"


def test_a_report_says_what_would_be_refused(lines, plan_of):
    plan = plan_of(Require("engine.seed", 3), typed={"engine.seed": 4})

    first, second, *_ = lines(log_plan, plan, TYPED, "told", only_reports=True)

    assert first.startswith("would apply to tiny-qwen3 ")
    assert second.startswith("  refused: q0 ")
