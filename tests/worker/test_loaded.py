"""What an engine says it loaded, by the names of its own parameters."""

from __future__ import annotations

from torch import nn

from worker.refit.engine.reload import first_names, own_names
from worker.refit.engine.verify import unwrapped

INNER = "model.layers.0.mlp.experts.routed_experts.w13_weight"


def test_the_experts_of_a_moe_layer_count_as_loaded_under_either_name():
    outer = INNER.replace("routed_experts.", "")

    assert own_names({outer}, {INNER}, {}) == {INNER}
    assert own_names({INNER}, {INNER}, {INNER: INNER}) == {INNER}


def test_what_is_a_parameter_of_its_own_keeps_its_name():
    assert own_names({"a.w"}, {"a.w", "a.routed_experts.w"}, {"a.w": "a.w"}) == {"a.w"}


def test_what_the_model_does_not_have_stays_as_it_was_reported():
    assert own_names({"lm_head.weight"}, {INNER}, {}) == {"lm_head.weight"}


def test_a_parameter_that_two_modules_share_counts_as_loaded_under_either_name():
    block = nn.Module()
    block.experts, block.gate = nn.Module(), nn.Linear(2, 2, bias=False)
    block.experts.gate = block.gate
    wanted = {name for name, _ in block.named_parameters()}

    for name in ("experts.gate.weight", "gate.weight"):
        assert own_names({name}, wanted, first_names(block)) == wanted == {"experts.gate.weight"}


def test_a_layer_that_is_wrapped_for_lora_counts_as_loaded_under_its_name_without_the_wrapper():
    held = ["mlp.down_proj.base_layer.weight", "mlp.experts.base_layer.routed_experts.w2_weight", "norm.weight"]
    reported = {"mlp.down_proj.weight", "mlp.experts.w2_weight", "norm.weight"}

    assert own_names(reported, set(held), {name: name for name in held}) == set(held)
    assert [unwrapped(name) for name in held] == [
        "mlp.down_proj.weight", "mlp.experts.routed_experts.w2_weight", "norm.weight"
    ]  # fmt: skip
    assert unwrapped("mlp.down_proj.base_layer") == "mlp.down_proj"
