"""Refits from the memory of all ranks of a sharded trainer: which parts they have, and that none waits for one that failed."""

from __future__ import annotations

from contextlib import ExitStack, closing
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from patience import HUNG_S
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transfers import FOREVER_S, same

from worker.errors import TransferError
from worker.refit import Source, send_ipc_zmq, tensors
from worker.refit.transport import trainer_ranks
from worker.refit.transport.channel import free_port
from worker.refit.transport.collective import CollectiveSender, CollectiveStream
from worker.refit.transport.group import Group, Ranks
from worker.refit.transport.ipc_zmq import IpcZmqStream
from worker.refit.transport.trainer_ranks import SharedPool
from worker.refit.weights import pool
from worker.refit.weights.box import Box, Part
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pool import Opened
from worker.refit.weights.shards import Shards

CPU, IP = torch.device("cpu"), "127.0.0.1"


class Plan:
    """Wants all of a layer in memory of its own."""

    is_checked = False

    def __init__(self, model):
        self.memory = {name: torch.zeros(tensor.shape) for name, tensor in model.named_parameters()}

    @property
    def wanted(self):
        """What a `CopyPlan` says."""
        specs = Manifest.of(self.memory.items()).tensors
        return [Part(spec, Box.whole(spec.shape), self.memory[spec.name]) for spec in specs]


class Others(Ranks):
    """Stands for the trainer's other ranks, which answer as they are told."""

    def __init__(self, *answers):
        self.said, self._answers = [], list(answers)
        self.source = {"pools": {}, "shards": SimpleNamespace(has_all_ranks=lambda _: True)}

    def gather_json(self, value):
        """What all say."""
        self.said.append(value)
        return self._answers.pop(0)

    agree = gather_json


@pytest.fixture
def sharded(mesh):
    """A layer that is sharded, in shared memory."""
    layer = torch.nn.Linear(4, 4)
    for name, parameter in list(layer.named_parameters()):
        setattr(layer, name, torch.nn.Parameter(distribute_tensor(parameter.detach().clone(), mesh, [Shard(0)])))
        getattr(layer, name).to_local().share_memory_()
    return layer


def came(stream, plan):
    """Whether a stream is by pieces, what it yields first, whether nothing was written by then, and the rest."""
    coming = stream.borrowed()
    first = next(coming)
    untouched = not any(map(torch.count_nonzero, plan.memory.values()))
    return stream.by_pieces, first, untouched, list(coming)


@pytest.mark.parametrize("is_collective", [False, True])
def test_nothing_is_written_before_a_caller_knows_of_it(background, sharded, address, is_collective):
    """Whoever is told of an error before the first tensors takes the model to be as it was."""
    plan, port = Plan(sharded), free_port(IP)

    def receive():
        with ExitStack() as ends:
            if is_collective:
                group = ends.enter_context(closing(Group(IP, port, rank=1, world_size=2, timeout_s=FOREVER_S)))
                return came(CollectiveStream(group, None, lambda _: plan), plan)
            stream = IpcZmqStream(address, None, device=CPU, timeout_s=FOREVER_S, plan=lambda _: plan)
            return came(ends.enter_context(stream), plan)

    receiving = background(receive)
    if is_collective:
        with closing(CollectiveSender(IP, port, world_size=2, timeout_s=FOREVER_S)) as sender:
            sender.send(Source(sharded, "parameters"))
    else:
        send_ipc_zmq(Source(sharded, "parameters"), [address], timeout_s=FOREVER_S)

    assert receiving.result(HUNG_S) == (True, [], True, [])
    assert all(torch.equal(plan.memory[name], tensor.full_tensor()) for name, tensor in sharded.named_parameters())


def test_what_no_rank_has_comes_by_itself(background, sharded, address):
    """Of a tensor without elements no rank has a part."""
    sharded.nothing = torch.nn.Parameter(torch.zeros(0, 3))

    def receive():
        with IpcZmqStream(address, None, device=CPU, timeout_s=FOREVER_S) as stream:
            return {name: tensor.clone() for tensors in stream.borrowed() for name, tensor in tensors}

    receiving = background(receive)
    send_ipc_zmq(Source(sharded, "parameters"), [address], timeout_s=FOREVER_S)

    assert same(dict(sorted(receiving.result(HUNG_S).items())), dict(sorted(tensors(sharded, "parameters"))))


def test_what_several_ranks_have_is_read_on_the_own_device(monkeypatch):
    """Replicas of another GPU would come over a link."""
    layer = torch.nn.Linear(4, 4)
    memory = {0: torch.empty(64, dtype=torch.uint8, device="meta"), 1: torch.zeros(64, dtype=torch.uint8)}
    monkeypatch.setattr(pool, "open_memory", lambda handle, *_, **__: memory[handle])
    held = [["weight", 0, (0, 0), (4, 4), (4, 1), 0]]
    tables = [{"memory": [number], "held": held} for number in memory]
    opened = Opened("", tables, Manifest.of([("weight", layer.weight)]), CPU)
    plan = Plan(layer)
    del plan.memory["bias"]

    assert [part.device for _, part in opened.copies(plan).parts] == [CPU]


def test_a_failure_elsewhere_is_voted_on_once():
    """A second vote would wait for ranks that have left the refit."""
    others = Others(0)

    with pytest.raises(TransferError, match="failed on another rank"), others.together():
        pass

    assert others.said == [1]


def test_a_rank_that_does_not_come_is_waited_for_up_to_a_limit(background):
    """However long the trainer's own process group waits."""
    port, limit = free_port(IP), timedelta(seconds=FOREVER_S)

    def join(rank):
        return dist.ProcessGroupGloo(dist.TCPStore(IP, port, 2, is_master=not rank, timeout=limit), rank, 2, limit)

    groups = [group.result(HUNG_S) for group in [background(join, rank) for rank in range(2)]]

    with pytest.raises(TransferError, match="a rank died or took too long: "):
        Ranks(groups[0], CPU, 0.5).agree(1)


def test_a_rank_that_cannot_share_memory_says_so_to_all(monkeypatch):
    others = Others(0)
    monkeypatch.setattr(trainer_ranks, "Ranks", lambda *_: others)

    def fail(_):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        SharedPool.of(SimpleNamespace(shared=fail, **others.source), CPU, 60)

    assert others.said == [0]


@pytest.mark.parametrize("known", [{}, {CPU: (["", "a"], None, ())}])
def test_one_answer_shows_each_rank_whether_another_comes(monkeypatch, known):
    """However much a rank remembers: a model that was described anew on one rank was not on the others."""
    others = Others(1, ["", "a"])
    monkeypatch.setattr(trainer_ranks, "Ranks", lambda *_: others)

    assert not SharedPool.of(SimpleNamespace(shared=lambda _: None, **others.source | {"pools": known}), CPU, 60).key
    assert others.said == [1, ""]


@pytest.mark.parametrize(("ranks", "kind", "found"), [(2, "cpu", True), (4, "cpu", False), (2, "cuda", False)])
def test_memory_is_shared_where_the_default_group_is_the_models(ranks, kind, found):
    """Other ranks would not come, and NCCL carries nothing on the host: such a trainer gathers."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = DeviceMesh("cpu", [0, 1])
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)], src_data_rank=None))

    assert Shards.of(model, "parameters").has_all_ranks(torch.device(kind)) == found

    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("placements", "is_taken"),
    [
        ([Replicate(), Shard(0)], True),
        ([Shard(0), Replicate()], True),
        ([Shard(0), Shard(0)], True),
        ([Shard(1), Shard(0)], True),
        ([_StridedShard(0, split_factor=2), Shard(0)], True),
        ([_StridedShard(0, split_factor=2), Replicate()], False),
        ([Shard(0), _StridedShard(0, split_factor=2)], False),
    ],
)
@pytest.mark.parametrize("rows", [1, 3, 4, 7])
def test_the_ranks_parts_are_the_tensor_or_none_has_a_part(placements, is_taken, rows):
    """Even and uneven shards, empty ones, replicas; and rows that do not follow each other, which are no part."""
    whole, count = torch.arange(rows * 4.0).reshape(rows, 4), torch.zeros(rows, 4)
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        names = (f"outer {rank}", f"inner {rank}")  # torch takes meshes of the same names for one, with one rank's coordinate
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(distribute_tensor(whole, mesh, placements, src_data_rank=None))
        shards = Shards.of(model, "parameters")
        held = list(shards.held(model)) if shards is not None else []
        dist.destroy_process_group()
        assert (shards is not None) == is_taken
        for _, box, part in held:
            rows_here, columns = (slice(start, start + size) for start, size in zip(*box, strict=True))
            assert torch.equal(whole[rows_here, columns], part)
            count[rows_here, columns] += 1
    assert not is_taken or len(count.unique()) == 1
