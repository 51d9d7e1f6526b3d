"""On the CPU platform every draft token gets the temperature, top-k and top-p of its request."""

from __future__ import annotations

import pytest
import torch

from quirks_plugins.speculative.cpu_speculative_patches import expand_batch_to_tokens

SLOT = "engine.speculative_config"
DRAFT = {SLOT: {"method": "draft_model", "model": "some/draft", "num_speculative_tokens": 3}}
CPU, CUDA = ("platform==cpu",), ("platform==cuda",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_token_has_the_value_of_its_request_and_the_marked_one_is_replaced(dtype):
    values, ends = torch.tensor([2, 0, 5], dtype=dtype), torch.tensor([2, 3, 3], dtype=torch.int32)

    found = expand_batch_to_tokens(values, ends, 3, replace_from=0, replace_to=1)

    assert (found.tolist(), found.dtype) == ([2, 2, 1], dtype)
    assert expand_batch_to_tokens(torch.tensor([0.5, 0.25]), torch.tensor([1, 4]), 4).tolist() == [0.5, 0.25, 0.25, 0.25]


def test_only_engines_with_a_draft_on_the_cpu_are_patched(plan_for):
    assert plan_for("qwen3", DRAFT, assume=CPU).patched == ["expand_batch_to_tokens"]
    assert [plan_for("qwen3", settings, assume=where).state for settings, where in ((DRAFT, CUDA), ({}, CPU))] == [
        "not_matched"
    ] * 2
