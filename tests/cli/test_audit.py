"""``quirks audit`` without an engine: what is refused at once, how an audit is shown, and how it ends."""

from __future__ import annotations

import pytest

from worker.lab.audit import refit_audit
from worker.lab.audit.records import Audit, Hazard, Refit


def hazard(layer=0, **values):
    module = f"model.layers.{layer}"
    facts = {
        "name": f"{module}.scale", "kind": "buffer", "module": module, "module_class": "acme.models.Layer",
        "persistent": True, "shape": (1,), "problem": "1 of 1 values differ, by up to 0.5", "in_checkpoint": True,
        "checkpoint": (f"{module}.scale",), "workers": (0,), "after": ("parameters",),
    }  # fmt: skip
    return Hazard(**{**facts, **values})


def record(hazards=(), *, planned=True, **values):
    refits = [Refit(label="parameters", scope="parameters"), *([Refit(label="plan", scope="state_dict")] if planned else [])]
    facts = {
        "date": "2026-11-21", "model": "[b]odd[/]", "model_type": "acme", "platform": "cpu", "versions": {"vllm": "0.32.0"},
        "plan": "0" * 64, "quirks": ("acme-scale",), "refits": tuple(refits), "hazards": tuple(hazards),
    }  # fmt: skip
    return Audit(**{**facts, **values})


CLEAN = record(planned=False)
COVERED = record([hazard(n, planned=(), covered_by=("acme-scale",)) for n in range(3)])
OPEN = record([hazard()], planned=False)
STAYS = record([hazard(planned=("plan",), after=("parameters", "state_dict")), hazard(7, name="norm", kind="parameter")])
REFUSED = record(refits=(Refit(label="parameters", scope="parameters", refused="nothing for [x]"),))


@pytest.fixture
def audited(monkeypatch):
    """Has the command end with a given audit, in place of engines; returns what the audit was asked."""

    def end(found):
        asked = {}

        async def audit(config, planning, **options):
            options.pop("notify")("a stage")
            asked.update(options, config=config, planning=planning)
            return found

        monkeypatch.setattr(refit_audit, "audit", audit)
        return asked

    return end


@pytest.mark.parametrize(
    ("found", "code", "last", "words"),
    [
        (CLEAN, 0, "clean [b]odd[/]: a refit of parameters leaves nothing wrong", ()),
        (
            COVERED,
            0,
            "covered [b]odd[/]: with the plan in force everything is right (acme-scale)",
            (
                "model.layers.0.scale (3 of them)",
                "buffer [1] of Layer",
                "in the checkpoint: model.layers.0.scale",
                "covered by acme-scale\n",
            ),
        ),
        (
            OPEN,
            1,
            "hazards [b]odd[/]: nothing covers 1 of 1",
            ("no quirk covers it", "a refit of the state dict restores it"),
        ),
        (STAYS, 1, "hazards [b]odd[/]: nothing covers 2 of 2", ("it stays with the plan in force", "parameter [1] of Layer")),
        (REFUSED, 1, "hazards [b]odd[/]: a refit leaves something", ("refused after refit 'parameters': nothing for [x]",)),
    ],
    ids=["clean", "covered", "open", "stays", "refused"],
)
def test_hazards_are_shown_with_what_covers_them(quirks, model, audited, found, code, last, words):
    audited(found)

    outcome = quirks("audit", model())

    assert outcome.code == code
    assert outcome.out.splitlines()[-1].startswith(last)
    assert [text for text in words if text not in outcome.out] == []


def test_json_is_the_audit_alone(quirks, model, audited):
    asked = audited(COVERED)

    outcome = quirks("audit", "--model", model(), "--json", "--disable", "gemma4-layer-scalar")

    values = outcome.json
    assert (values.pop("clean"), values.pop("passed")) == (False, True)
    assert Audit.model_validate(values) == COVERED
    assert "gemma4-layer-scalar" in asked["planning"].switches.layers[1]
