"""Copies into a model: what lies side by side is one copy, and everything lands where it belongs."""

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


@pytest.fixture
def written(monkeypatch):
    """The number of elements of each copy."""
    seen, foreach = [], torch._foreach_copy_

    def spied(written, sources):
        seen.extend(tensor.numel() for tensor in written)
        foreach(written, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", spied)
    return seen


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


def with_a_gap(sent):
    return {name: part for name, part in sent.items() if name != "1.up"}


def on_their_own(sent):
    """The same memory, but tensors that only happen to be neighbours."""
    return {name: torch.from_numpy(part.numpy()) for name, part in sent.items()}


def swapped(sent):
    return {name: sent[name.replace("gate", "x").replace("up", "gate").replace("x", "up")] for name in sent}


@pytest.mark.parametrize(
    ("change", "dtype", "copies"),
    [
        (dict, torch.float32, [EXPERTS * EXPERT]),
        (dict, torch.bfloat16, [EXPERTS * EXPERT]),
        (with_a_gap, torch.float32, [3 * GATE, 4 * GATE]),
        (on_their_own, torch.float32, [GATE] * 2 * EXPERTS),
        (swapped, torch.float32, [GATE] * 2 * EXPERTS),
    ],
)
def test_what_is_fused_on_both_sides_is_one_copy(model, written, change, dtype, copies):
    sent = {**change(parts(fused().to(dtype))), "norm": torch.randn(OUTER)}

    plan(model, sent).copy(sent.items())

    assert sorted(written) == [OUTER, *copies]
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


def test_large_tensors_are_copied_alone(model, written, monkeypatch):
    monkeypatch.setattr("worker.refit.weights.copy_plan._SMALL", 4 * GATE)
    sent = {**parts(fused()), "norm": torch.randn(OUTER)}

    plan(model, sent).copy(sent.items())

    assert written == [OUTER]
    assert torch.equal(model.norm, sent["norm"])
    assert torch.equal(model.w13[1, :INNER], sent["1.gate"])


def chunk_of(copy_plan, *names):
    """Tensors side by side, as a trainer sends them that has them fused."""
    found, end = [], 0
    for spec in copy_plan.manifest.tensors:
        if spec.name in names:
            found.append((spec, end))
            end += spec.nbytes
    return sorted(found, key=lambda item: names.index(item[0].name))


def test_what_belongs_in_the_model_as_sent_is_received_in_place(model, written):
    sent = {"0.gate": torch.randn(INNER, OUTER), "0.up": torch.randn(INNER, OUTER)}
    copies = plan(model, sent)
    room = copies.room_for(chunk_of(copies, "0.gate", "0.up"))

    assert room.data_ptr() == model.w13.data_ptr()
    room.copy_(torch.cat(list(sent.values())).view(-1).view(torch.uint8))
    copies.copy((name, room.view(torch.float32).view(2, INNER, OUTER)[half]) for half, name in enumerate(sent))

    assert not written
    assert torch.equal(model.w13[0], torch.cat(list(sent.values())))


@pytest.mark.parametrize(
    ("dtype", "names"),
    [(torch.float32, ("0.up", "0.gate")), (torch.bfloat16, ("0.gate",)), (torch.float32, ("0.gate", "norm"))],
    ids=["in another order", "of another dtype", "for two parameters"],
)
def test_what_has_to_be_taken_apart_or_converted_has_no_room(model, dtype, names):
    sent = {name: torch.randn(INNER, OUTER, dtype=dtype) for name in ("0.gate", "0.up")} | {"norm": torch.randn(OUTER)}
    copies = plan(model, sent)

    assert copies.room_for(chunk_of(copies, *names)) is None


def test_what_is_reloaded_as_well_has_no_room(model):
    sent = {"norm": torch.randn(OUTER)}
    write = Write("norm", Region(0, (OUTER,), (1,)), "norm", Region(0, (OUTER,), (1,)))
    copies = CopyPlan(model, Manifest.of(sent.items()), [write], reloaded=["norm"], modules=["other"])

    assert copies.room_for(chunk_of(copies, "norm")) is None
