"""Refits by pieces: every element arrives once, from a rank that holds it, where it belongs; shapes and places at random."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch
from patience import HUNG_S

from worker.refit.transport.channel import free_port
from worker.refit.transport.exchange import agree
from worker.refit.transport.group import Group
from worker.refit.weights import pieces
from worker.refit.weights.box import Box, Part, Region
from worker.refit.weights.manifest import Manifest

IP = "127.0.0.1"


def cut(box: Box, ranks: int, generator: random.Random) -> list[Box]:
    """Splits a box over ranks along a dimension, unevenly; some may get nothing."""
    if not box.size:
        return [box] * ranks
    axis = generator.randrange(len(box.size))
    marks = [0, *sorted(generator.randint(0, box.size[axis]) for _ in range(ranks - 1)), box.size[axis]]
    found = []
    for first, last in pairwise(marks):
        start, size = list(box.start), list(box.size)
        start[axis], size[axis] = start[axis] + first, last - first
        found.append(Box(tuple(start), tuple(size)))
    return found


def part(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(start, start + size) for start, size in zip(*box, strict=True))]


def exchanged(background, manifest, held, wanted):
    """Runs one exchange, twice, and returns what each engine rank got whole."""
    port, size = free_port(IP), len(held) + len(wanted)

    def run(rank):
        group = Group(IP, port, rank=rank, world_size=size, timeout_s=60)
        _, exchange = agree(group, manifest, (held + wanted)[rank], is_sender=rank < len(held))
        found = None if exchange is None else [dict(exchange.run()) for _ in range(2)][-1]
        group.agree(1)
        group.close()
        return found

    futures = [background(run, rank) for rank in range(size)]
    return [future.result(HUNG_S) for future in futures][len(held) :]


@pytest.mark.parametrize("seed", range(12))
def test_every_element_arrives_where_it_belongs(background, monkeypatch, seed):
    """Trainer ranks hold uneven parts or the same, engine ranks want parts in fused memory, transposed layouts and casts."""
    generator = random.Random(seed)  # noqa: S311 - for shapes
    monkeypatch.setattr(pieces, "BUFFER_BYTES", generator.choice([64, 1000, 1 << 20]))
    monkeypatch.setattr(pieces, "_LARGE", generator.choice([32, 1 << 20]))
    trainers, engines = generator.randint(1, 3), generator.randint(1, 2)
    tensors, held = {}, [[] for _ in range(trainers)]
    for number in range(12):
        shape = [generator.randint(1, 9) for _ in range(generator.randint(0, 3))]
        dtype = generator.choice([torch.bfloat16, torch.float32])
        tensors[f"t{number}"] = torch.arange(math.prod(shape)).add_(1000 * number % 255).reshape(shape).to(dtype)
    manifest, wanted, expected = Manifest.of(tensors.items()), [], []
    for spec, tensor in zip(manifest.tensors, tensors.values(), strict=True):
        boxes = cut(Box.whole(tensor.shape), trainers, generator)
        for rank, box in enumerate(boxes if generator.random() < 0.7 else [Box.whole(tensor.shape)] * trainers):
            if box.numel:
                own = part(tensor, box)
                held[rank].append(Part(spec, box, own.clone() if generator.random() < 0.5 else own))
    for _ in range(engines):
        memory = torch.zeros(10000)
        wants, wholes, start = [], {}, 0
        for spec, tensor in zip(manifest.tensors, tensors.values(), strict=True):
            if generator.random() < 0.2:
                wants.append(Part(spec, Box.whole(spec.shape)))
                wholes[spec.name] = tensor
                continue
            box = generator.choice(cut(Box.whole(tensor.shape), 2, generator))
            if not box.numel:
                continue
            room = memory[start : start + box.numel].view(box.size)
            dtype = tensor.dtype if generator.random() < 0.7 else generator.choice([torch.bfloat16, torch.float32])
            place = room.to(dtype) if dtype != room.dtype else room
            start += box.numel + generator.choice([0, 0, 3])
            wants.append(Part(spec, box, place))
            expected.append((place, part(tensor, box).to(dtype)))
        wanted.append(wants)
        expected.append(wholes)

    found = exchanged(background, manifest, held, wanted)

    wholes = [one for one in expected if isinstance(one, dict)]
    assert found[0] is not None or (trainers, engines) == (1, 2)  # which might send everything twice
    if found[0] is None:
        return
    for got, want in zip(found, wholes, strict=True):
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], want[name]) for name in want)
    assert all(torch.equal(place, values) for place, values in (one for one in expected if not isinstance(one, dict)))


@pytest.mark.parametrize(
    ("parts", "engines"),
    [([(0, 4), (5, 8)], 1), ([(0, 4), (2, 6)], 1), ([(0, 8)], 2), ([(0, 0)], 1)],
    ids=["a gap", "an overlap", "twice", "without elements"],
)
def test_what_an_exchange_cannot_do_or_does_twice_is_broadcast(background, parts, engines):
    """What no rank holds, or several engines want from one."""
    tensor = torch.arange(float(parts[-1][1]))
    manifest = Manifest.of([("t", tensor)])
    (spec,) = manifest.tensors
    held = [[Part(spec, Box((first,), (last - first,)), tensor[first:last])] for first, last in parts]

    assert exchanged(background, manifest, held, [[Part(spec, Box.whole(spec.shape))]] * engines) == [None] * engines


def test_what_changes_on_one_rank_is_agreed_on_again_by_all(background):
    """A trainer's rank whose tensors have moved, an engine's rank that needs them whole for once, and one with a new plan."""
    tensor, port = torch.arange(8.0), free_port(IP)
    manifest, boxes = Manifest.of([("t", tensor)]), [Box((0,), (4,)), Box((4,), (4,))]
    (spec,) = manifest.tensors
    first, moved = ([[Part(spec, box, part(tensor + shift, box).clone())] for box in boxes] for shift in (0, 100))
    plans = [[Part(spec, Box.whole((8,)), torch.zeros(8))] for _ in range(2)]
    refits = [  # what each rank votes about
        (first[0], first[1], plans[0]),
        (first[0], first[1], plans[0]),
        (first[0], moved[1], plans[0]),
        (moved[0], moved[1], None),
        (moved[0], moved[1], plans[0]),
        (moved[0], moved[1], plans[1]),
    ]

    def run(rank):
        group, found = Group(IP, port, rank=rank, world_size=3, timeout_s=HUNG_S), []
        for parts in (refit[rank] for refit in refits):
            _, exchange = agree(group, manifest, parts, is_sender=rank < 2)
            for _ in exchange.run() if exchange is not None else ():
                pass
            found.append([memory.tolist() for [(_, _, memory)] in plans] if exchange is not None else None)
        group.close()
        return found

    *_, engine = [future.result(HUNG_S) for future in [background(run, rank) for rank in range(3)]]

    old, new, nothing = tensor.tolist(), (tensor + 100).tolist(), [0.0] * 8
    expected = [[old, nothing], [old, nothing], [old[:4] + new[4:], nothing], None, [new, nothing], [new, new]]
    assert engine == expected


@pytest.mark.parametrize(
    ("show", "box", "axes"),
    [
        (lambda tensor: tensor[2], Box((2, 0, 0), (1, 4, 5)), (1, 2)),
        (lambda tensor: tensor[:, 1:3], Box((0, 1, 0), (3, 2, 5)), (0, 1, 2)),
        (lambda tensor: tensor[1, :, 2:4], Box((1, 0, 2), (1, 4, 2)), (1, 2)),
        (lambda tensor: tensor[1, 2, 3], Box((1, 2, 3), (1, 1, 1)), ()),
        (lambda tensor: tensor.transpose(0, 1), None, None),
        (lambda tensor: tensor.flatten(), None, None),
        (lambda tensor: tensor[::2], None, None),
        (lambda tensor: tensor[:1].expand(3, 4, 5), None, None),
    ],
)
def test_a_view_is_found_if_it_keeps_the_order(show, box, axes):
    tensor = torch.arange(60).reshape(3, 4, 5)
    shown = show(tensor)

    assert Region.lying(shown).shown(tensor.shape) == ((box, axes) if box else None)


def test_a_whole_tensor_whose_elements_lie_apart_is_put_together():
    """Copies take elements that follow one another."""
    memory = torch.arange(8.0).view(2, 4)[:, :2]
    (spec,) = Manifest.of([("t", memory)]).tensors

    ((_, whole),) = pieces.Wholes(torch.device("cpu")).add(Part(spec, Box.whole((2, 2)), memory), memory)

    assert whole.is_contiguous()
    assert torch.equal(whole, memory)
