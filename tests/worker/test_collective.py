"""The collective on the CPU: gloo groups of real processes and threads: a manifest is agreed on first, a dead rank missed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future

import pytest
import torch

from worker.errors import RefitRejectedError, TransferError
from worker.refit import CollectiveSender, Manifest
from worker.refit.collective import CollectiveStream, Group
from worker.refit.sending import free_port

IP = "127.0.0.1"
#: Seconds after which a test has hung.
HUNG_S = 60
#: Seconds that nobody may have to wait for the end of.
FOREVER_S = 600.0

#: A rank that takes part until the first tensors are here, and then does nothing any more.
_STUCK = """
import sys, time
from worker.refit.collective import CollectiveStream, Group

group = Group("127.0.0.1", int(sys.argv[1]), rank=int(sys.argv[2]), world_size=int(sys.argv[3]), timeout_s=600)
next(iter(CollectiveStream(group, None)))
print("half-way", flush=True)
time.sleep(600)
"""

#: A trainer that sends some tensors, and then does nothing any more.
_STUCK_TRAINER = """
import sys, time, torch
from worker.refit import CollectiveSender, Manifest

tensors = {f"t{index}": torch.full((256,), float(index)) for index in range(12)}

def source():
    for index, item in enumerate(tensors.items()):
        if index == 5:
            print("half-way", flush=True)
            time.sleep(600)
        yield item

sender = CollectiveSender("127.0.0.1", int(sys.argv[1]), world_size=int(sys.argv[2]), timeout_s=600)
sender.send(source, manifest=Manifest.of(tensors.items()), buffer_bytes=1024)
"""


@pytest.fixture
def meet(background):
    """Has trainer and engine ranks meet, each in a thread; leaves the groups after the test."""
    met: list[CollectiveSender | Group] = []

    def together(trainers: int = 1, engines: int = 1) -> tuple[list[CollectiveSender], list[Group]]:
        port, size = free_port(IP), trainers + engines

        def trainer(rank: int) -> CollectiveSender:
            return CollectiveSender(IP, port, world_size=size, rank=rank, timeout_s=FOREVER_S)

        def engine(rank: int) -> Group:
            return Group(IP, port, rank=rank, world_size=size, timeout_s=FOREVER_S)

        joining = [background(trainer, rank) for rank in range(trainers)]
        joining += [background(engine, rank) for rank in range(trainers, size)]
        met.extend(future.result(HUNG_S) for future in joining)
        return met[:trainers], met[trainers:]

    yield together
    for one in met:
        one.close()


def receive(group: Group, expected: Manifest | None = None) -> dict[str, torch.Tensor]:
    """The engine's end, whole."""
    with CollectiveStream(group, expected) as stream:
        return dict(stream)


def many(count: int = 12, start: float = 0.0) -> dict[str, torch.Tensor]:
    """Tensors of 1 KiB each, all different."""
    return {f"t{index}": torch.full((256,), start + index) for index in range(count)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def error_of(future: Future) -> str:
    with pytest.raises(TransferError) as caught:
        future.result(HUNG_S)
    return str(caught.value)


@pytest.mark.parametrize("engines", [1, 2])
def test_every_engine_rank_receives_everything_again_and_again(background, meet, engines):
    (sender,), groups = meet(engines=engines)

    for start in (0.0, 100.0):
        receiving = [background(receive, group) for group in groups]
        sender.send(many(start=start).items, buffer_bytes=2048)

        assert all(same(future.result(HUNG_S), many(start=start)) for future in receiving)


def test_every_dtype_and_shape_arrives_as_it_was(background, meet):
    (sender,), (group,) = meet()
    sent = {
        str(dtype): torch.arange(6).to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.int64)
    }
    sent |= {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 3), "transposed": torch.arange(6.0).reshape(2, 3).t()}
    receiving = background(receive, group, Manifest.of(sent.items()))

    sender.send(sent.items, buffer_bytes=256)

    received = receiving.result(HUNG_S)
    assert same(received, sent)
    assert all(received[name].dtype == sent[name].dtype for name in sent)


def test_two_trainer_ranks_send_the_values_of_the_first(background, meet):
    senders, (group,) = meet(trainers=2)
    receiving = background(receive, group)

    other = background(senders[1].send, many(start=100.0).items, buffer_bytes=2048)
    senders[0].send(many().items, buffer_bytes=2048)

    other.result(HUNG_S)
    assert same(receiving.result(HUNG_S), many())


def test_one_rank_that_rejects_keeps_all_from_starting_and_the_group_stays_good(background, meet):
    senders, groups = meet(trainers=2, engines=2)
    passes = []

    def source() -> Iterable[tuple[str, torch.Tensor]]:
        passes.append(1)
        return many(2).items()

    manifest = Manifest.of(many(2).items())
    ends = [background(receive, groups[0], manifest), background(receive, groups[1], Manifest.of(many(3).items()))]
    ends += [background(sender.send, source, manifest=manifest) for sender in senders]

    accepting, rejecting, *sending = [future.exception(HUNG_S) for future in ends]

    assert {type(error) for error in (accepting, rejecting, *sending)} == {RefitRejectedError}
    assert "1 missing: t2" in str(rejecting)
    assert "rejected by another rank; nothing was loaded" in str(accepting)
    assert all("nothing was sent" in str(error) for error in sending)
    assert not passes
    again = [background(receive, group) for group in groups]
    sending = [background(sender.send, many().items) for sender in senders]
    assert all(same(future.result(HUNG_S), many()) for future in again)
    assert all(future.result(HUNG_S) is None for future in sending)


def test_an_engine_rank_that_is_killed_half_way_is_missed_by_all_at_once(background, start):
    port = free_port(IP)
    engine = start(_STUCK, port, 1, 3)
    joining = background(Group, IP, port, rank=2, world_size=3, timeout_s=FOREVER_S)
    sender = CollectiveSender(IP, port, world_size=3, timeout_s=FOREVER_S)
    receiving = background(receive, joining.result(HUNG_S))
    sending = background(sender.send, many().items, buffer_bytes=1024)
    assert engine.stdout.readline() == "half-way\n"

    engine.kill()

    assert "a rank died or took too long" in error_of(sending)
    assert "a rank died or took too long" in error_of(receiving)


def test_a_trainer_that_is_killed_half_way_is_missed_at_once(background, start):
    port = free_port(IP)
    trainer = start(_STUCK_TRAINER, port, 2)
    group = Group(IP, port, rank=1, world_size=2, timeout_s=FOREVER_S)
    receiving = background(receive, group)
    assert trainer.stdout.readline() == "half-way\n"

    trainer.kill()

    assert "a rank died or took too long" in error_of(receiving)


def test_a_trainer_whose_tensors_cannot_be_had_ends_the_group_for_all(background, meet):
    (sender,), (group,) = meet()
    receiving = background(receive, group)

    def source():
        yield "t0", torch.zeros(256)
        raise RuntimeError("the optimizer has gone")

    with pytest.raises(RuntimeError, match="the optimizer has gone"):
        sender.send(source, manifest=Manifest.of(many(2).items()), buffer_bytes=1024)

    assert "a rank died or took too long" in error_of(receiving)
    with pytest.raises(TransferError, match="must open a new one"):
        sender.send(many().items)


def test_a_receiver_that_fails_ends_the_group_for_all(background, meet):
    (sender,), (group,) = meet()

    def break_down():
        with CollectiveStream(group, None) as stream:
            next(iter(stream))
            raise RuntimeError("no such layer")

    receiving = background(break_down)

    with pytest.raises(TransferError, match="a rank died or took too long"):
        sender.send(many().items, buffer_bytes=1024)

    assert isinstance(receiving.exception(HUNG_S), RuntimeError)


def test_a_trainer_that_falls_silent_is_given_up_after_the_limit(background):
    port, silent = free_port(IP), threading.Event()

    def source():
        yield "t0", torch.zeros(256)
        silent.wait(HUNG_S)
        yield "t1", torch.zeros(256)

    joining = background(CollectiveSender, IP, port, world_size=2, timeout_s=FOREVER_S)
    group = Group(IP, port, rank=1, world_size=2, timeout_s=1.0)
    sending = background(joining.result(HUNG_S).send, source, manifest=Manifest.of(many(2).items()), buffer_bytes=1024)

    with pytest.raises(TransferError, match="a rank died or took too long"):
        receive(group)

    silent.set()
    assert isinstance(sending.exception(HUNG_S), TransferError)


def test_a_rank_that_nobody_meets_is_an_error_that_names_the_place():
    port = free_port(IP)

    with pytest.raises(TransferError, match=rf"rank 1 of 2 could not join the group at {IP}:{port} within 0\.3 s"):
        Group(IP, port, rank=1, world_size=2, timeout_s=0.3)


def test_a_trainer_that_nobody_joins_gives_the_port_back():
    port = free_port(IP)

    with pytest.raises(TransferError, match=rf"rank 0 of 2 could not join the group at {IP}:{port} within 0\.3 s"):
        CollectiveSender(IP, port, world_size=2, timeout_s=0.3)

    with socket.create_server((IP, port)):
        pass


def test_a_group_that_was_left_can_be_left_again(meet):
    (sender,), (group,) = meet()

    sender.close()
    sender.close()
    group.close()
    group.close()

    with pytest.raises(TransferError, match="must open a new one"):
        group.agree(True)


def test_an_address_of_another_machine_has_no_free_port():
    with pytest.raises(TransferError, match=r"nothing can listen on 203\.0\.113\.7"):
        free_port("203.0.113.7")
