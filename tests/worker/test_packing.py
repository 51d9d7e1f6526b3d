"""Which tensors are broadcast together, and from where: the tensors' own memory if they lie in it as they are sent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from worker.refit import Manifest, Source
from worker.refit.weights import packing
from worker.refit.weights.box import Box, Place, Region
from worker.refit.weights.packing import Packing

CPU = torch.device("cpu")


def manifest(**sizes: int) -> Manifest:
    return Manifest.of((name, torch.empty(size, dtype=torch.uint8)) for name, size in sizes.items())


def place(memory: int, offset: int) -> Place:
    """300 bytes."""
    return Place(Box.whole((300,)), memory, Region(offset, (300,), (1,)))


@pytest.mark.parametrize(
    ("sizes", "buffer_bytes", "places", "expected"),
    [
        ({"a": 100, "b": 300, "c": 200}, 900, {}, [[("a", 0), ("b", 256)], [("c", 0)]]),
        ({"a": 100, "b": 500, "c": 200}, 1000, {}, [[("a", 0)], [("b", 0)], [("c", 0)]]),
        (
            dict.fromkeys("abcd", 300),
            1000,
            {name: place(0x1000, 300 * index) for index, name in enumerate("abcd")},
            [[("a", 0), ("b", 300), ("c", 600)], [("d", 0)]],
        ),
        ({"a": 300, "b": 300}, 1000, {"a": place(0x1000, 0), "b": place(0x1000, 900)}, [[("a", 0), ("b", 512)]]),
        ({"a": 300, "b": 300}, 1000, {"a": place(0x1000, 0), "b": place(0x9000, 300)}, [[("a", 0), ("b", 512)]]),
    ],
    ids=["small ones at aligned offsets", "a large one alone", "neighbours as one", "a gap between", "memory of its own"],
)
def test_tensors_are_put_together_up_to_the_size_of_a_buffer(monkeypatch, sizes, buffer_bytes, places, expected):
    """GPUs copy from aligned offsets fastest; and the other side learns all of it."""
    monkeypatch.setattr(packing, "_LARGE", 500)

    packed = Packing.of(manifest(**sizes), buffer_bytes, places)

    assert [[(spec.name, offset) for spec, offset in chunk] for chunk in packed.chunks] == expected
    assert Packing.decode(packed.encode()) == packed


@pytest.fixture
def model():
    """A layer whose two parts lie side by side, and one parameter of another shape."""
    layer = nn.Module()
    layer.other = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    fused = torch.arange(8.0)
    layer.one, layer.two = nn.Parameter(fused[:4]), nn.Parameter(fused[4:])
    return layer


def test_a_model_s_tensors_are_sent_from_where_they_lie(model):
    source = Source(model, "parameters")
    other, one, two = source.manifest.tensors
    found = source.in_place(CPU)

    assert found.memory([(one, 0), (two, 16)]).data_ptr() == model.one.data_ptr()
    assert torch.equal(found.memory([(one, 0), (two, 16)]).view(torch.float32), torch.arange(8.0))
    assert torch.equal(found.memory([(other, 0)]).view(torch.float32), torch.arange(6.0))


def test_what_does_not_lie_as_it_is_sent_has_no_memory(model):
    source = Source(model, "parameters")
    other, one, two = source.manifest.tensors
    (elsewhere,) = Manifest.of([("gathered", torch.ones(1))]).tensors

    for chunk in ([(two, 0), (one, 16)], [(one, 0), (two, 256)], [(one, 0), (other, 16)], [(elsewhere, 0)]):
        assert source.in_place(CPU).memory(chunk) is None
