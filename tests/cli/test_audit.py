"""``quirks audit`` without an engine: what is refused at once, how an audit is shown, and how it ends."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from quirks_core.cli.audit import groups, show_audit
from worker.parity import refit_audit
from worker.parity.audit_records import Audit, Hazard, Logits, Refit

_CLOSE = Logits(tokens=150, max_abs_delta=0.0, mean_abs_delta=0.0, nonfinite=0, tolerance=1e-3)


def hazard(layer=0, **values):
    module = f"model.layers.{layer}"
    defaults = {
        "name": f"{module}.scale",
        "kind": "buffer",
        "module": module,
        "module_class": "acme.models.Layer",
        "persistent": True,
        "shape": (1,),
        "problem": "1 of 1 values differ, by up to 0.5",
        "in_checkpoint": True,
        "checkpoint": (f"{module}.scale",),
        "workers": (0,),
        "after": ("parameters",),
    }
    return Hazard(**{**defaults, **values})


def record(hazards=(), *, planned=True, **values):
    refits = [Refit(label="parameters", scope="parameters"), *([Refit(label="plan", scope="state_dict")] if planned else [])]
    defaults = {
        "date": "2026-11-21",
        "model": "[b]odd[/]",
        "model_type": "acme",
        "platform": "cpu",
        "versions": {"vllm": "0.32.0"},
        "plan": "0" * 64,
        "quirks": ("acme-scale",),
        "refits": tuple(refits),
        "hazards": tuple(hazards),
    }
    return Audit(**{**defaults, **values})


COVERED = record([hazard(n, planned=(), covered_by=("acme-scale",)) for n in range(3)], planned_logits=_CLOSE)
OPEN = record([hazard()], planned=False, skeleton="QUIRK = Quirk(…)", logits=_CLOSE.model_copy(update={"max_abs_delta": 3.0}))
STAYS = record([hazard(planned=("plan",), after=("parameters", "state_dict"))])


def shown(audit):
    console = Console(file=io.StringIO(), width=200)
    show_audit(console, audit)
    return console.file.getvalue()


@pytest.fixture
def audited(monkeypatch):
    """Has the command end with a given audit, in place of engines; returns what the audit was asked."""

    def end(found):
        asked = {}

        async def audit(config, **options):
            options.pop("tell")("a stage")
            asked.update(options, config=config)
            return found

        monkeypatch.setattr(refit_audit, "audit", audit)
        return asked

    return end


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model: give --model"),
        (["here", "--model", "there"], "the model is given twice"),
        (["here", "--assume", "vllm==0.26.0"], "audit runs the installed one"),
        (["./no-such-folder"], "does not exist"),
    ],
)
def test_what_cannot_be_audited_is_a_usage_error(quirks, arguments, message):
    outcome = quirks("audit", *arguments)

    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())


@pytest.mark.parametrize(
    ("found", "code", "last"),
    [
        (record(planned=False, logits=_CLOSE), 0, "clean [b]odd[/]: a refit of parameters leaves nothing wrong"),
        (COVERED, 0, "covered [b]odd[/]: with the plan in force everything is right (acme-scale)"),
        (OPEN, 1, "hazards [b]odd[/]: nothing covers 1 of 1"),
        (STAYS, 1, "hazards [b]odd[/]: nothing covers 1 of 1"),
    ],
    ids=["clean", "covered", "open", "stays"],
)
def test_the_last_line_says_what_the_exit_code_means(quirks, model, audited, found, code, last):
    audited(found)

    outcome = quirks("audit", model())

    assert outcome.code == code
    assert outcome.out.splitlines()[-1] == last


def test_json_holds_the_records_and_the_verdict_and_nothing_else(quirks, model, audited):
    asked = audited(COVERED)

    outcome = quirks("audit", "--model", model(), "--json", "--no-logits", "--disable", "acme-other", "--set", "engine.seed=3")

    values = outcome.json
    assert (values.pop("clean"), values.pop("passed")) == (False, True)
    assert Audit.model_validate(values) == COVERED
    assert (asked["logits"], asked["disable"], asked["config"].engine.seed) == (False, ["acme-other"], 3)


def test_layers_are_one_row_and_other_hazards_are_not():
    hazards = [*COVERED.hazards, hazard(7, planned=("plan",)), hazard(8, name="model.norm.weight", kind="parameter")]

    assert [len(group) for group in groups(hazards)] == [3, 1, 1]
    assert "model.layers.0.scale (3 of them)" in shown(COVERED)


def test_a_hazard_is_shown_with_its_module_its_place_in_the_checkpoint_and_its_quirk():
    text = shown(COVERED)

    assert all(words in text for words in ("buffer [1] of Layer", "in the checkpoint: model.layers.0.scale", "acme-scale"))


def test_what_nothing_covers_comes_with_what_to_do():
    text = shown(OPEN)

    assert "no quirk covers it" in text
    assert "a refit of the state dict restores it" in text
    assert "QUIRK = Quirk(…)" in text
    assert "other weights" in text


def test_what_stays_with_the_plan_is_told_apart_from_what_nobody_looked_after():
    assert "it stays with the plan in force" in shown(STAYS)


def test_a_refit_that_the_worker_refuses_is_shown_with_its_reason():
    refits = (Refit(label="parameters", scope="parameters", refused="nothing for [x]"),)

    assert "refused after refit 'parameters': nothing for [x]" in shown(record(refits=refits))
