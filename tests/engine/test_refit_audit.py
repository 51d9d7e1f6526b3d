"""``quirks audit`` on real engines: it finds what refits lose, knows no model by name, and shows what covers it."""

from __future__ import annotations

import json

import pytest

from quirks_core.cli import main
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from worker import GenerationConfig
from worker.lab.audit.refit_audit import audit
from worker.lab.kit.lab import configuration

pytestmark = pytest.mark.usefixtures("forked")


@pytest.fixture
def audited(checkpoint, lean):
    """Audits the refits of a tiny checkpoint."""

    async def run(kind, *disable):
        config = GenerationConfig.parse(configuration(checkpoint(kind), lean()))
        return await audit(config, PlanOptions.gather(config, call=SwitchNames(disable)))

    return run


async def test_a_buffer_that_no_parameter_brings_is_seen_to_be_covered(audited):
    """Gemma-4: a start from dummy weights fills what refits of parameters leave; with the plan in force it is right."""
    found = await audited("gemma4")

    assert {(hazard.name, hazard.kind, hazard.persistent, hazard.after) for hazard in found.hazards} == {
        (f"model.layers.{layer}.layer_scalar", "buffer", True, ("parameters",)) for layer in (0, 1)
    }
    assert all(hazard.checkpoint == (hazard.name,) for hazard in found.hazards)
    assert {hazard.covered_by for hazard in found.hazards} == {("gemma4-layer-scalar",)}
    assert [refit.scope for refit in found.refits if refit.label.startswith("plan")] == ["state_dict", "state_dict"]
    assert (found.clean, found.passed) == (False, True)


async def test_a_buffer_that_a_refit_destroys_is_no_better_from_disk(audited):
    """Apertus without its quirk: what the state dict has brought is lost again, so a start from the checkpoint is no help."""
    found = await audited("apertus", "apertus-xielu-buffers")

    assert {hazard.name.rpartition(".")[2] for hazard in found.hazards} == {"beta", "eps"}
    assert {(hazard.module_class.rpartition(".")[2], hazard.after) for hazard in found.hazards} == {
        ("XIELU", ("parameters", "parameters again"))
    }
    assert {hazard.planned for hazard in found.hazards} == {None}
    assert (found.clean, found.passed) == (False, False)


@pytest.mark.usefixtures("worker_in_core")
def test_the_command_finds_a_model_without_such_buffers_clean(checkpoint, capsys):
    settings = ["engine.enforce_eager=true", "engine.dtype=float32", "engine.max_model_len=128"]
    options = [word for setting in settings for word in ("--set", setting)]

    code = main(["audit", str(checkpoint("qwen3")), "--json", *options])

    found = json.loads(capsys.readouterr().out)
    assert (code, found["clean"], found["hazards"]) == (0, True, [])
    assert [refit["label"] for refit in found["refits"]] == ["parameters", "state_dict", "parameters again"]
