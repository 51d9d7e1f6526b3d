"""A refit audit's comparisons, on an engine with the plan in force: equal weights are equal, and others are not."""

from __future__ import annotations

import pytest

from worker.lab.audit.refit_audit import _refit, _step
from worker.refit import RefitScope


@pytest.fixture
async def compared(worker, policies):
    """Refits the engine with a policy and compares it with the checkpoint, which is policy ``a``."""

    async def run(name):
        policy = getattr(policies, name)
        return await _refit(worker, policy.model, "plan", RefitScope.PARAMETERS)

    yield run
    await _step(worker, "release")


async def test_an_engine_with_the_same_weights_differs_in_nothing(compared):
    """A tied llama, whose head no refit on the CPU reaches without the quirk."""
    found = await compared("a")

    assert (found.refit.differs, found.refit.refused) == ((), "")


async def test_every_parameter_of_another_policy_is_named(compared):
    found = await compared("b")

    rows = {row["module"]: row for row in found.rows.values()}
    fused = rows["model.layers.0.self_attn.qkv_proj"]
    assert {name.rpartition("self_attn.")[2] for name in fused["checkpoint"]} == {f"{one}_proj.weight" for one in "qkv"}
    assert rows["lm_head"]["checkpoint"] == ["model.embed_tokens.weight"]
    assert {"model.embed_tokens", "model.norm", "model.layers.1.mlp.down_proj"} <= rows.keys()
    assert {row["kind"] for row in rows.values()} <= {"parameter", "computation"}
    assert all(row["in_checkpoint"] and row["workers"] == [0] for row in rows.values())
