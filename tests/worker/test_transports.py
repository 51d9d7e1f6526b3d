"""What transports of a refit keep to, over real processes, real memory and real deaths.

What sockets and shared memory alone keep to is in `test_ipc_zmq`, the collective alone at the end.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import pytest
import torch
from patience import HUNG_S
from transfers import FOREVER_S, error_of, many, same

from worker.errors import RefitError, RefitRejectedError, TransferError
from worker.refit import CollectiveSender, Manifest, Source, send_ipc_zmq
from worker.refit.transport.channel import free_port
from worker.refit.transport.collective import CollectiveStream
from worker.refit.transport.group import Group
from worker.refit.transport.ipc_zmq import IpcZmqStream

IP = "127.0.0.1"
#: Every tensor has its own buffer.
BUFFER = 1024

#: An engine's process that takes part for a while and then does nothing any more.
_STUCK = """
import sys, time, torch
from pathlib import Path
from worker.refit.transport.collective import CollectiveStream
from worker.refit.transport.group import Group
from worker.refit.transport.ipc_zmq import IpcZmqStream

how, *where = sys.argv[1:]
if how == "ipc_zmq":
    stream = IpcZmqStream(Path(where[0]), None, device=torch.device("cpu"), timeout_s=3600)
else:
    port, rank, size = map(int, where)
    stream = CollectiveStream(Group("127.0.0.1", port, rank=rank, world_size=size, timeout_s=3600), None)
next(stream.borrowed())
print("half-way", flush=True)
time.sleep(3600)
"""


class IpcZmq:
    """A trainer and the processes of an engine on one machine."""

    name = "ipc_zmq"
    gone = "died or closed its socket"

    def __init__(self, folder, engines: int, timeout_s: float) -> None:
        self.addresses = [folder / f"rank-{rank}.sock" for rank in range(engines)]
        self._timeout_s = timeout_s

    def process(self) -> list[object]:
        """Arguments of the process of the first rank."""
        return [self.name, self.addresses[0]]

    def send(self, source, manifest=None) -> None:
        """The trainer's end, whole."""
        send_ipc_zmq(source, self.addresses, manifest=manifest, buffer_bytes=BUFFER, timeout_s=FOREVER_S)

    def stream(self, rank: int = 0, expected: Manifest | None = None, **options) -> IpcZmqStream:
        """The end of an engine process."""
        device = torch.device("cpu")
        return IpcZmqStream(self.addresses[rank], expected, device=device, timeout_s=self._timeout_s, **options)

    def close(self) -> None:
        """Nothing lasts longer than a refit."""


class Collective:
    """A group of trainer and engine ranks; each joins when it is first needed."""

    name = "collective"
    gone = "a rank died or took too long"

    def __init__(self, _, engines: int, timeout_s: float, trainers: int = 1) -> None:
        self.port, self.size, self._trainers, self._timeout_s = free_port(IP), trainers + engines, trainers, timeout_s
        self.ranks: dict[int, CollectiveSender | Group] = {}

    def process(self) -> list[object]:
        """Arguments of the process of the first rank."""
        return [self.name, self.port, self._trainers, self.size]

    def send(self, source, manifest=None, trainer: int = 0) -> None:
        """The trainer's end, whole."""
        if trainer not in self.ranks:
            self.ranks[trainer] = CollectiveSender(IP, self.port, world_size=self.size, rank=trainer, timeout_s=FOREVER_S)
        self.ranks[trainer].send(source, manifest=manifest, buffer_bytes=BUFFER)

    def stream(self, rank: int = 0, expected: Manifest | None = None, **options) -> CollectiveStream:
        """The end of an engine process."""
        rank += self._trainers
        if rank not in self.ranks:
            self.ranks[rank] = Group(IP, self.port, rank=rank, world_size=self.size, timeout_s=self._timeout_s)
        return CollectiveStream(self.ranks[rank], expected, **options)

    def close(self) -> None:
        """Leaves the group."""
        for rank in self.ranks.values():
            rank.close()


@pytest.fixture
def opened(tmp_path_factory) -> Iterator:
    """Opens a transport to some engine processes, and closes it after the test."""
    wires = []

    def start(kind, engines=1, timeout_s=FOREVER_S, **options):
        wires.append(kind(tmp_path_factory.mktemp("s"), engines, timeout_s, **options))  # a socket's path must be short
        return wires[-1]

    yield start
    for wire in wires:
        wire.close()


@pytest.fixture(params=[IpcZmq, Collective], ids=["ipc_zmq", "collective"])
def wired(request, opened):
    """Opens the transport that a test is about."""
    return lambda engines=1, **options: opened(request.param, engines, **options)


def receive(wire, rank: int = 0, expected: Manifest | None = None) -> dict[str, torch.Tensor]:
    """An engine's end, whole."""
    with wire.stream(rank, expected) as stream:
        return {name: tensor.clone() for tensors in stream.borrowed() for name, tensor in tensors}


def test_every_tensor_arrives_as_it_was(background, wired):
    wire = wired()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 255, (6, 8), dtype=torch.uint8, generator=generator)
    dtypes = "bfloat16 float16 float32 int8 int64 float8_e4m3fn complex64"
    sent = {name: noise.clone().view(getattr(torch, name)) for name in dtypes.split()}
    sent |= {"flags": noise > 100, "scalar": torch.tensor(1.5), "none": torch.zeros(0, 3), "nan": torch.tensor([float("nan")])}
    sent["transposed"] = torch.arange(6.0).reshape(2, 3).t()
    receiving = background(receive, wire, 0, Manifest.of(sent.items()))

    wire.send(sent.items)

    assert same(receiving.result(HUNG_S), {name: tensor.contiguous() for name, tensor in sent.items()})


def test_every_process_receives_all_of_refits_in_a_row(background, wired):
    wire = wired(engines=2)

    def receive_often(rank):
        return [receive(wire, rank) for _ in range(10)]

    receiving = [background(receive_often, rank) for rank in range(2)]
    for time in range(10):
        wire.send(many(3, start=time).items)

    for future in receiving:
        assert all(same(found, many(3, start=time)) for time, found in enumerate(future.result(HUNG_S)))


@pytest.mark.parametrize(
    ("pairs", "problem"), [([], "the trainer sends no tensors"), ([("a", torch.zeros(1))] * 2, "1 sent twice: a")]
)
def test_a_refit_that_cannot_be_loaded_does_the_next_no_harm(background, wired, pairs, problem):
    wire = wired()
    rejecting = background(receive, wire)

    with pytest.raises(RefitError, match="reject"):
        wire.send(lambda: pairs)

    assert isinstance(error := rejecting.exception(HUNG_S), RefitRejectedError)
    assert str(error) == f"refit rejected, nothing was loaded: {problem}"
    again = background(receive, wire)
    wire.send(many().items)
    assert same(again.result(HUNG_S), many())


def test_a_refit_that_one_process_rejects_ends_for_all(background, wired):
    wire, passes, got = wired(engines=2), [], []

    def source():
        passes.append(1)
        return many(2).items()

    def receive_some():
        with wire.stream(0) as stream:
            got.extend(stream.borrowed())

    manifest = Manifest.of(many(2).items())
    accepting, rejecting = background(receive_some), background(receive, wire, 1, Manifest.of(many(3).items()))
    sending = background(wire.send, source, manifest)
    accepted, rejected, sent = (future.exception(HUNG_S) for future in (accepting, rejecting, sending))

    assert isinstance(rejected, RefitRejectedError)
    assert "refit rejected, nothing was loaded: 1 missing: t2" in str(rejected)
    assert isinstance(accepted, RefitError)
    assert isinstance(sent, RefitError)
    assert "reject" in str(sent)
    assert not passes
    assert not got
    again = [background(receive, wire, rank) for rank in range(2)]
    wire.send(many().items)
    assert all(same(future.result(HUNG_S), many()) for future in again)


def test_an_engine_process_killed_half_way_is_missed_at_once(start, background, wired):
    wire = wired(engines=2)
    engine = start(_STUCK, *wire.process())
    receiving = background(receive, wire, 1)
    sending = background(wire.send, many().items)
    assert engine.stdout.readline() == "half-way\n"

    engine.kill()

    assert wire.gone in error_of(sending)
    assert wire.name != "ipc_zmq" or f"the engine's process at {wire.addresses[0]}" in error_of(sending)
    assert isinstance(receiving.exception(HUNG_S), TransferError)


def half_way():
    yield "t0", torch.zeros(256)
    raise RuntimeError("the optimizer has gone")


def at_once():
    raise RuntimeError("the optimizer has gone")


def moved():
    model = torch.nn.Linear(4, 4).share_memory()
    source = Source(model, "parameters")
    model.weight.data = model.weight.data.clone()
    return source


@pytest.mark.parametrize(
    ("source", "manifest", "error"),
    [
        (half_way, Manifest.of(many(2).items()), "RuntimeError: the optimizer has gone"),
        (at_once, None, "RuntimeError: the optimizer has gone"),
        (moved(), None, "RefitError: .* make a Source for every refit"),
    ],
)
def test_a_source_that_fails_ends_the_refit_on_both_sides(background, wired, source, manifest, error):
    wire = wired()
    receiving = background(receive, wire)

    with pytest.raises((RuntimeError, RefitError), match=error.partition(": ")[2]):
        wire.send(source, manifest)

    expected = {"ipc_zmq": f"the trainer reports: {error}", "collective": wire.gone}
    assert re.search(expected[wire.name], error_of(receiving))


@pytest.mark.parametrize("is_early", [True, False])
def test_a_receiver_that_fails_ends_the_refit_on_both_sides(background, wired, is_early):
    """Also one that fails before it votes."""
    wire = wired()

    def no_plan(_):
        raise RuntimeError("no such layer")

    def break_down():
        with wire.stream(**{"plan": no_plan} if is_early else {}) as stream:
            next(stream.borrowed())
            no_plan(stream)

    receiving = background(break_down)

    expected = {"ipc_zmq": "reports: RuntimeError: no such layer", "collective": wire.gone}
    with pytest.raises(TransferError, match=expected[wire.name]):
        wire.send(many().items)
    assert isinstance(receiving.exception(HUNG_S), RuntimeError)


def test_a_trainer_that_falls_silent_half_way_is_given_up(background, wired):
    wire, silent = wired(timeout_s=2.0), threading.Event()

    def source():
        for index, item in enumerate(many(3).items()):
            if index == 2:
                silent.wait(HUNG_S)
            yield item

    sending = background(wire.send, source, Manifest.of(many(3).items()))

    with pytest.raises(TransferError, match=r"took too long|did not answer within refit\.timeout_s = 2 s"):
        receive(wire)

    silent.set()
    assert isinstance(sending.exception(HUNG_S), TransferError)


# ---- the collective alone


def test_two_trainer_ranks_send_the_values_of_the_first(background, opened):
    wire = opened(Collective, trainers=2)
    receiving = background(receive, wire)

    other = background(wire.send, many(start=100.0).items, None, 1)
    wire.send(many().items)

    other.result(HUNG_S)
    assert same(receiving.result(HUNG_S), many())


def test_a_model_described_once_is_sent_from_where_it_lies(background, opened, monkeypatch):
    wire, described = opened(Collective), []
    model = torch.nn.Module()
    for name, tensor in many(3).items():
        model.register_parameter(name, torch.nn.Parameter(tensor))
    broadcast = []

    def noting(call, seen):
        return lambda *arguments: seen.append(arguments) or call(*arguments)

    monkeypatch.setattr(Group, "broadcast_weights", noting(Group.broadcast_weights, broadcast))
    monkeypatch.setattr(Manifest, "encode", noting(Manifest.encode, described))

    for _ in range(2):
        receiving = background(receive, wire)
        source = Source(model, "parameters")
        wire.send(source)
        assert same(receiving.result(HUNG_S), {name: tensor.detach() for name, tensor in model.named_parameters()})
        with torch.no_grad():
            model.t1.add_(1)

    assert len(described) == 1
    own = [tensor.data_ptr() for tensor in model.parameters()]
    assert [memory.data_ptr() for group, memory in broadcast if group.rank == 0] == own * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_nobody_meets_gives_the_port_back(rank):
    port = free_port(IP)

    with pytest.raises(TransferError, match=rf"rank {rank} of 2 could not join the group at {IP}:{port} within 0\.3 s"):
        Group(IP, port, rank=rank, world_size=2, timeout_s=0.3)

    with socket.create_server((IP, port)):
        pass


def test_ranks_on_devices_of_different_kinds_do_not_meet(background):
    port = free_port(IP)
    trainer = background(lambda: Group(IP, port, rank=0, world_size=2, timeout_s=FOREVER_S))

    with pytest.raises(TransferError, match="rank 0 sends from cpu, rank 1 computes on meta; give CollectiveSender a device"):
        Group(IP, port, rank=1, world_size=2, timeout_s=FOREVER_S, device="meta")

    trainer.result(HUNG_S).close()


def test_a_group_that_was_left_is_left_for_good(background, opened):
    wire = opened(Collective)
    receiving = background(receive, wire)
    wire.send(many().items)
    receiving.result(HUNG_S)

    for _ in range(2):
        wire.close()

    for rank in wire.ranks.values():
        with pytest.raises(TransferError, match="must open a new one"):
            rank.send(many().items) if isinstance(rank, CollectiveSender) else rank.agree(True)


def test_an_address_of_another_machine_has_no_free_port():
    with pytest.raises(TransferError, match=r"nothing can listen on 203\.0\.113\.7"):
        free_port("203.0.113.7")
