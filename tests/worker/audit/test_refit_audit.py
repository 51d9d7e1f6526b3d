"""Refit audits without an engine: what counts as clean, which quirk is credited, how ``quirks audit`` shows it and ends."""

from __future__ import annotations

import asyncio

import pytest

from quirks_core.cli import main
from quirks_core.plugins.planning import PlanOptions, make_plan
from worker import GenerationConfig
from worker.lab.audit.records import Audit, AuditError, Hazard, Refit
from worker.lab.audit.refit_audit import audit, candidates, changes_weights, covering

PLANNED = (Refit(label="parameters", scope="parameters"), Refit(label="plan", scope="state_dict"))
REFUSED = (Refit(label="parameters", scope="parameters", refused="nothing for [x]"),)


def hazard(layer=0, **values):
    module = f"model.layers.{layer}"
    facts = {
        "name": f"{module}.scale", "kind": "buffer", "module": module, "module_class": "acme.models.Layer",
        "persistent": True, "shape": (1,), "problem": "1 of 1 values differ, by up to 0.5", "in_checkpoint": True,
        "checkpoint": (f"{module}.scale",), "workers": (0,), "after": ("parameters",),
    }  # fmt: skip
    return Hazard(**{**facts, **values})


def record(hazards=(), refits=PLANNED[:1]):
    facts = {"date": "2026-11-21", "model": "[b]odd[/]", "model_type": "acme", "platform": "cpu", "versions": {}}
    return Audit(**facts, plan="0" * 64, quirks=("acme-scale",), refits=refits, hazards=tuple(hazards))


def covered_but(**again):
    """A hazard that the plan covers, but not in its second refit."""
    return record([hazard(planned=())], (*PLANNED, Refit(label="plan again", scope="state_dict", **again)))


@pytest.fixture
def plan(model):
    """Resolves the plan of a rollout on vLLM 0.32 for CPU."""

    def make(model_type, *, platform="cpu", config=None, **values):
        run = GenerationConfig.parse({"model": str(model(model_type, **(config or {}))), **values})
        return make_plan(run, PlanOptions.gather(run, assume=["vllm==0.32.0", f"platform=={platform}"]))

    return make


@pytest.mark.parametrize(
    ("kind", "quirks", "changes"),
    [
        ("gemma4_text", ("gemma4-layer-scalar",), True),
        ("apertus", ("apertus-xielu-buffers",), True),
        ("qwen3_moe", ("cpu-moe-experts-refit",), True),
        ("qwen3", (), False),
    ],
)
def test_candidates_are_the_quirks_that_could_affect_weights(plan, kind, quirks, changes):
    found = plan(kind, config={"tie_word_embeddings": False} | ({"num_experts": 8} if kind == "qwen3_moe" else {}))

    assert candidates(found) == quirks
    assert changes_weights(found) is changes


def test_a_patch_under_another_built_in_flag_is_not_taken_away(plan):
    engine = {"data_parallel_size": 2, "enable_expert_parallel": True}
    config = {"num_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False}

    found = plan("qwen3_moe", config=config, engine=engine, parallel={"dp_strategy": "engine"})

    assert "cpu-moe-expert-parallel" in {patch.quirk.id for patch in found.patches}
    assert "cpu-moe-expert-parallel" not in candidates(found)


def test_what_no_refit_restores_is_credited_to_who_patches_it(plan):
    after = ("parameters", "state_dict", "parameters again")
    found = plan("qwen3_moe", config={"tie_word_embeddings": False, "num_experts": 4})

    assert covering(hazard(kind="parameter", after=after, planned=()), found) == ("cpu-moe-experts-refit",)
    assert covering(hazard(planned=()), plan("glm4_moe")) == ("router-bias-buffers",)


LEFT, DESTROYED, LASTING = ("parameters",), ("parameters", "parameters again"), ("parameters", "state_dict", "parameters again")
SENT, LOADED = {"refit": {"scope": "state_dict"}}, {"engine": {"load_format": "auto"}}


@pytest.mark.parametrize(
    ("values", "after", "credit"),
    [
        (SENT, LEFT, ("refit.scope=state_dict",)),
        (LOADED, LEFT, ("engine.load_format=auto",)),
        (LOADED, DESTROYED, ()),
        ({**SENT, **LOADED}, LEFT, ("refit.scope=state_dict",)),
        ({**SENT, **LOADED}, DESTROYED, ("refit.scope=state_dict",)),
        ({**SENT, **LOADED}, LASTING, ("engine.load_format=auto",)),
    ],
)
def test_without_a_quirk_the_users_setting_is_credited(plan, values, after, credit):
    assert covering(hazard(after=after, planned=()), plan("acme", platform="cuda", **values)) == credit


@pytest.mark.parametrize(
    ("values", "destroyed", "remedy"),
    [
        ({"after": LEFT}, False, "refit.scope=state_dict"),
        ({"after": DESTROYED}, True, "refit.scope=state_dict"),
        ({"after": LASTING, "in_checkpoint": False, "persistent": False}, False, "no checkpoint holds it"),
        ({"after": LASTING, "kind": "computation"}, False, "process the layer again"),
    ],
)
def test_the_refits_show_the_remedy(values, destroyed, remedy):
    found = hazard(**values)

    assert (remedy in found.remedy, found.is_destroyed) == (True, destroyed)


def test_transformers_loads_the_model_before_an_engine_starts(model, capsys):
    folder, steps = model("no-such-type"), []
    (folder / "model.safetensors").touch()

    with pytest.raises(AuditError, match=r"transformers cannot load .*no-such-type"):
        asyncio.run(audit(GenerationConfig.parse({"model": str(folder)}), notify=steps.append))

    assert steps == ["loading the model with transformers"]
    assert main(["audit", str(folder)]) == main(["audit", str(folder), "--set", "env.VLLM_DP_SIZE=2"]) == 2
    assert "error:" in capsys.readouterr().err


@pytest.fixture
def audited(monkeypatch):
    """Has the command end with a given audit, in place of engines; returns what the audit was asked."""

    def end(found):
        asked = {}

        async def audit(config, planning, **options):
            options.pop("notify")("a stage")
            asked.update(options, config=config, planning=planning)
            return found

        monkeypatch.setattr("worker.lab.audit.refit_audit.audit", audit)
        return asked

    return end


COVERED = record([hazard(n, planned=(), covered_by=("acme-scale",)) for n in range(3)], PLANNED)
OPEN = "hazards [b]odd[/]"
LEFT_WRONG = f"{OPEN}: a refit leaves something"
STAYS = [hazard(planned=("plan",), after=("parameters", "state_dict")), hazard(7, name="norm", kind="parameter")]


@pytest.mark.parametrize(
    ("found", "code", "last", "words"),
    [
        (record(), 0, "clean [b]odd[/]: a refit of parameters leaves nothing wrong", ()),
        (
            COVERED,
            0,
            "covered [b]odd[/]: with the plan in force everything is right (acme-scale)",
            (
                "scale (3 of them): buffer [1] of Layer\n",
                "in the checkpoint: model.layers.0.scale\n    covered by acme-scale\n",
            ),
        ),
        (
            record([hazard()]),
            1,
            f"{OPEN}: nothing covers 1 of 1",
            ("no quirk covers it; a refit of the state dict restores it",),
        ),
        (record(STAYS, PLANNED), 1, f"{OPEN}: nothing covers 2 of 2", ("it stays with the plan in force",)),
        (record(refits=REFUSED), 1, LEFT_WRONG, ("refused after refit 'parameters': nothing for [x]",)),
        (covered_but(differs=("x",)), 1, LEFT_WRONG, ()),
        (covered_but(refused="no"), 1, LEFT_WRONG, ("refused after refit 'plan again': no",)),
    ],
    ids=["clean", "covered", "open", "stays", "refused", "the plan brings one in", "refused with the plan"],
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
