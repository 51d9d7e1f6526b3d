"""The layout of a checkpoint without its memory."""

from __future__ import annotations

import pytest
import torch

from worker.refit import Source
from worker.refit.weights import scope
from worker.refit.weights.views import without_copies

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["qwen3_moe", "glm4_moe", "gpt_oss", "qwen3"])
def model(request, tiny_checkpoint):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint(request.param), dtype=torch.float32).share_memory()


def test_a_checkpoint_s_tensors_are_views_of_the_models_memory(model, monkeypatch):
    layout = scope.layout(model, "state_dict")
    memory = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}

    monkeypatch.setattr("worker.refit.weights.views.without_copies", lambda convert: convert())
    expected = scope.layout(model, "state_dict")

    assert list(layout) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in layout.items())
    assert {tensor.untyped_storage().data_ptr() for tensor in layout.values()} <= memory


def test_the_parts_of_fused_experts_are_read_where_they_are(model):
    source = Source(model, "parameters")
    names = {name for name, *_ in source.shared(CPU).table["held"]}

    whole = {name for name, tensor in scope.layout(model, "parameters").items() if tensor.is_contiguous()}
    assert names == whole


def test_a_conversion_that_writes_leaves_the_model_alone():
    weight = torch.ones(4, 2)

    doubled = without_copies(lambda: weight.t().contiguous().mul_(2))

    assert torch.equal(doubled, torch.full((2, 4), 2.0))
    assert torch.equal(weight, torch.ones(4, 2))
