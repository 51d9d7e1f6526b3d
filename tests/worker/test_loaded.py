"""What an engine says it loaded, by the names of its own parameters."""

from __future__ import annotations

import pytest
from torch import nn

from worker.refit.engine.reload import first_names, own_names
from worker.refit.engine.verify import unwrapped

INNER = "model.layers.0.mlp.experts.routed_experts.w13_weight"
LORA = "mlp.experts.base_layer.routed_experts.w2_weight"


@pytest.mark.parametrize(
    ("reported", "held", "own"),
    [
        (INNER.replace("routed_experts.", ""), {INNER}, INNER),
        (INNER, {INNER}, INNER),
        ("a.w", {"a.w", "a.routed_experts.w"}, "a.w"),
        ("lm_head.weight", {INNER}, "lm_head.weight"),
        ("mlp.down_proj.weight", {"mlp.down_proj.base_layer.weight"}, "mlp.down_proj.base_layer.weight"),
        ("mlp.experts.w2_weight", {LORA}, LORA),
    ],
    ids=["outer", "inner", "a parameter of its own", "not in the model", "wrapped for LoRA", "outer, wrapped for LoRA"],
)
def test_a_parameter_counts_as_loaded_under_either_name(reported, held, own):
    assert own_names({reported}, held, {name: name for name in held}) == {own}


def test_a_shared_parameter_counts_as_loaded_under_either_name():
    block = nn.Module()
    block.experts, block.gate = nn.Module(), nn.Linear(2, 2, bias=False)
    block.experts.gate = block.gate
    wanted = {name for name, _ in block.named_parameters()}

    for name in ("experts.gate.weight", "gate.weight"):
        assert own_names({name}, wanted, first_names(block)) == wanted == {"experts.gate.weight"}


def test_a_layer_wrapped_for_lora_has_its_own_name():
    assert unwrapped("mlp.down_proj.base_layer") == "mlp.down_proj"
