"""Copies into a model: everything lands where it belongs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from worker.refit.weights.copy_plan import CopyPlan, Region, Write
from worker.refit.weights.manifest import Manifest

EXPERTS, INNER, OUTER = 4, 3, 5
GATE, EXPERT = INNER * OUTER, 2 * INNER * OUTER


@pytest.fixture
def model():
    """A fused layer as the engine has it: gate and up of one expert after the other."""
    layer = nn.Module()
    layer.w13 = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER, OUTER), requires_grad=False)
    layer.norm = nn.Parameter(torch.zeros(OUTER), requires_grad=False)
    return layer


def fused():
    """The trainer's layer, fused as well; its parts go under the names of a checkpoint."""
    return torch.randn(EXPERTS, 2 * INNER, OUTER)


def parts(weights):
    gates = {f"{expert}.gate": weights[expert, :INNER] for expert in range(EXPERTS)}
    return gates | {f"{expert}.up": weights[expert, INNER:] for expert in range(EXPERTS)}


def plan(model, sent):
    region = Region(0, (INNER, OUTER), (OUTER, 1))
    copies = [
        Write(f"{expert}.{part}", region, "w13", Region(expert * EXPERT + half * GATE, (INNER, OUTER), (OUTER, 1)))
        for expert in range(EXPERTS)
        for half, part in enumerate(("gate", "up"))
    ]
    copies.append(Write("norm", Region(0, (OUTER,), (1,)), "norm", Region(0, (OUTER,), (1,))))
    return CopyPlan(model, Manifest.of(sent.items()), copies, reloaded=(), modules=())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_part_lands_where_it_belongs(model, dtype):
    sent = {**parts(fused().to(dtype)), "norm": torch.randn(OUTER)}

    plan(model, sent).copy(sent.items())

    assert torch.equal(model.norm, sent.pop("norm"))
    halves = {"gate": slice(INNER), "up": slice(INNER, None)}
    for name, part in sent.items():
        expert, _, half = name.partition(".")
        assert torch.equal(model.w13[int(expert), halves[half]], part.float())


def test_bytes_show_what_is_copied_to_where_its_name_belongs(model):
    sent = {**parts(fused()), "norm": torch.randn(OUTER)}

    found = plan(model, sent)

    assert (found.in_place, found.alone, found.hidden) == ({"norm"}, {"norm": "norm"}, parts(fused()).keys())


def test_parts_that_vllm_fuses_are_shown_by_the_whole():
    """Unless they are transposed."""
    layer = nn.Module()
    layer.qkv_proj = nn.Linear(OUTER, 3 * OUTER, bias=False)
    sent = {f"{part}_proj.weight": torch.randn(OUTER, OUTER) for part in "qkv"}
    strides = {"q": (1, OUTER), "k": (OUTER, 1), "v": (OUTER, 1)}
    copies = []
    for place, part in enumerate("qkv"):
        written = Region(place * OUTER * OUTER, (OUTER, OUTER), (OUTER, 1))
        copies.append(Write(f"{part}_proj.weight", Region(0, (OUTER, OUTER), strides[part]), "qkv_proj.weight", written))

    found = CopyPlan(layer, Manifest.of(sent.items()), copies, reloaded=(), modules=())

    assert (found.in_place, found.alone, found.hidden) == ({"k_proj.weight", "v_proj.weight"}, {}, {"q_proj.weight"})


def test_large_tensors_are_copied_alone(model, monkeypatch):
    written, foreach = [], torch._foreach_copy_
    monkeypatch.setattr("worker.refit.weights.copy_plan._SMALL", 4 * GATE)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda some, came: written.extend(map(len, some)) or foreach(some, came))
    sent = {**parts(fused()), "norm": torch.randn(OUTER)}

    plan(model, sent).copy(sent.items())

    assert written == [OUTER]
    assert torch.equal(model.norm, sent["norm"])
    assert torch.equal(model.w13[1, :INNER], sent["1.gate"])
