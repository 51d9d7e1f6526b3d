"""A refit audit's comparison, on an engine with the plan in force."""

from __future__ import annotations

from worker.lab.audit.refit_audit import _refit, _step
from worker.refit import RefitScope


async def test_every_parameter_of_another_policy_is_named(worker, policies):
    """The checkpoint is policy ``a``, a tied llama, whose head no refit on the CPU reaches without the quirk."""
    found = await _refit(worker, policies.b.model, "plan", RefitScope.PARAMETERS)
    await _step(worker, "release")

    rows = {row["module"]: row for row in found.rows.values()}
    fused = rows["model.layers.0.self_attn.qkv_proj"]
    assert {name.rpartition("self_attn.")[2] for name in fused["checkpoint"]} == {f"{one}_proj.weight" for one in "qkv"}
    assert rows["lm_head"]["checkpoint"] == ["model.embed_tokens.weight"]
    assert {"model.embed_tokens", "model.norm", "model.layers.1.mlp.down_proj"} <= rows.keys()
    assert {row["kind"] for row in rows.values()} <= {"parameter", "computation"}
    assert all(row["in_checkpoint"] and row["workers"] == [0] for row in rows.values())
