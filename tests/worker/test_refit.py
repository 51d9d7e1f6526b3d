"""The trainer's side of a refit: which tensors are sent; and what a checkpoint holds."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from worker.refit import Manifest, RefitScope, tensors
from worker.refit.weights.checkpoint import held


class Tiny(nn.Module):
    """A parameter, a persistent buffer, and a buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.register_buffer("layer_scalar", torch.tensor(1.5))
        self.register_buffer("cache", torch.zeros(3), persistent=False)


def names(model: nn.Module, scope: RefitScope | str) -> list[str]:
    """The names that a refit sends."""
    return [name for name, _ in tensors(model, scope)]


@pytest.mark.parametrize("form", [RefitScope, str])
def test_a_refit_s_scope_decides_whether_buffers_are_sent(form):
    assert names(Tiny(), form("parameters")) == ["linear.weight"]
    assert sorted(names(Tiny(), form("state_dict"))) == ["layer_scalar", "linear.weight"]


@pytest.mark.parametrize("scope", RefitScope)
def test_a_tied_parameter_is_sent_once_under_its_first_name(scope):
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    model["head"].weight = model["embed"].weight

    assert names(model, scope) == ["embed.weight"]


def test_tensors_are_sent_detached_and_contiguous():
    """From the model's own memory, where it is contiguous."""
    model = Tiny()
    model.other = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())

    sent = dict(tensors(model, RefitScope.STATE_DICT))

    assert not any(tensor.requires_grad for tensor in sent.values())
    assert all(tensor.is_contiguous() for tensor in sent.values())
    assert sent["linear.weight"].data_ptr() == model.linear.weight.data_ptr()
    assert torch.equal(sent["other"], model.other)


def test_a_checkpoint_is_described_by_its_files_that_can_be_read(tmp_path):
    """Whatever dtypes they have."""
    names = ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e8m0fnu")
    saved = {name: torch.ones(2, 3).to(getattr(torch, name)) for name in names}
    save_file(saved, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(1).int()}, tmp_path / "two.safetensors")
    (tmp_path / "three.safetensors").write_bytes(b"broken")

    assert held(tmp_path) == Manifest.parse({**{name: ((2, 3), name) for name in sorted(saved)}, "b": ((1,), "int32")})
    assert not held(tmp_path).announced
    assert held(tmp_path / "absent").tensors == ()
