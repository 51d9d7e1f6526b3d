"""The sockets and the shared memory of a refit on one machine; what all transports keep to is in `test_transports`."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import threading
import time
from pathlib import Path

import pytest
import torch
from patience import HUNG_S, until
from transfers import FOREVER_S, error_of, many, same

from worker.errors import RefitError, TransferError
from worker.refit import Manifest, Source, send_ipc_zmq
from worker.refit.transport.channel import Channel
from worker.refit.transport.ipc_zmq import PROTOCOL, IpcZmqStream
from worker.refit.weights import source
from worker.refit.weights.buffers import share_memory

CPU = torch.device("cpu")
#: What a trainer says first.
FIRST = {"protocol": PROTOCOL, "manifest": [["a", "int8", [1]]], "buffers": [], "buffer_bytes": 256}


@pytest.fixture
def stranger(address):
    """A peer that does not keep to our protocol."""
    channel = Channel(address, other="the engine", timeout_s=HUNG_S)
    yield channel
    channel.close()


def receive(path: Path, expected: Manifest | None = None, timeout_s: float = FOREVER_S) -> dict[str, torch.Tensor]:
    """The engine's end, whole."""
    with IpcZmqStream(path, expected, device=CPU, timeout_s=timeout_s) as stream:
        return {name: tensor.clone() for tensors in stream.borrowed() for name, tensor in tensors}


def send(addresses, value: dict[str, torch.Tensor], *, timeout_s: float = FOREVER_S, **options: object) -> None:
    """The trainer's end, whole."""
    send_ipc_zmq(value.items, addresses, buffer_bytes=1024, timeout_s=timeout_s, **options)


def is_open(path: Path) -> bool:
    """Whether somebody listens there, and the file has the rights that it keeps."""
    return path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nobody_waits_for_the_other_side_longer_than_its_limit(address):
    with pytest.raises(TransferError, match=rf"process at {address} did not answer within refit\.timeout_s = 0\.2 s"):
        send([address], many(), timeout_s=0.2)
    with pytest.raises(TransferError, match=r"the trainer did not answer within refit\.timeout_s = 0\.2 s"):
        receive(address, timeout_s=0.2)
    assert list(address.parent.iterdir()) == []  # no socket is left


def test_a_wait_can_be_given_up(background, address):
    over = threading.Event()
    sending = background(send, [address], many(), given_up=over.is_set)

    over.set()

    assert "given up while waiting" in error_of(sending)


def test_an_engine_waits_while_its_socket_s_folder_is_there(background, address):
    receiving = background(receive, address)
    until(lambda: is_open(address), "the engine's socket")

    shutil.rmtree(address.parent)

    assert "given up while waiting for the trainer" in error_of(receiving)


def test_the_owner_s_socket_is_gone_once_a_trainer_is_there(background, address, stranger):
    before = os.umask(0)
    try:
        receiving = background(receive, address)
        while not is_open(address):
            time.sleep(0.01)
            assert not receiving.done()
    finally:
        os.umask(before)

    stranger.send(FIRST)

    assert stranger.receive() == {}
    assert not address.exists()
    stranger.close()
    assert "died or closed" in error_of(receiving)


def test_a_file_that_a_killed_process_left_is_replaced(background, address):
    address.write_text("left behind", encoding="utf-8")
    receiving = background(receive, address)

    send([address], many(1))

    assert same(receiving.result(HUNG_S), many(1))


@pytest.mark.parametrize(
    ("accepted", "wrong", "problem"),
    [
        ([], {"protocol": 99}, f"the trainer speaks protocol 99, this engine {PROTOCOL}"),
        ([FIRST], {"chunk": 1}, "did not send chunk 0 when it was due"),
    ],
)
def test_another_protocol_is_an_error_on_both_sides(background, address, stranger, accepted, wrong, problem):
    """The two sides may have different versions of this package."""
    receiving = background(receive, address)
    for message in accepted:
        stranger.send(message)
        assert stranger.receive() == {}

    stranger.send(wrong)

    with pytest.raises(TransferError, match=problem):
        stranger.receive()
    assert problem in error_of(receiving)


def test_an_address_that_cannot_be_used_has_a_way_out(tmp_path):
    with pytest.raises(TransferError, match="cannot be opened: AF_UNIX path too long; see TMPDIR"):
        receive(tmp_path / ("x" * 108))
    with pytest.raises(TransferError, match="call the worker's report_refit_addresses_async"):
        send([], many())


def test_a_lack_of_memory_is_an_error_on_both_sides(background, address):
    receiving = background(receive, address)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(RefitError, match=r"no 2097152 bytes of shared memory: File too large; free memory"):
            send_ipc_zmq({"a": torch.arange(1 << 18)}.items, [address], timeout_s=FOREVER_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert "the trainer reports: RefitError: refit: no 2097152 bytes" in error_of(receiving)


def read(address, known):
    """The engine's end, with memory that it knows; returns what came, and the memory that it read in place."""
    with IpcZmqStream(address, None, device=CPU, timeout_s=FOREVER_S, known=known) as stream:
        return {name: tensor.clone() for tensors in stream.borrowed() for name, tensor in tensors}, stream.memory


def refit(background, address, model, known=None, device="cpu"):
    """One refit of a model; returns what the engine read in place."""
    sending = background(send_ipc_zmq, Source(model, "parameters"), [address], device=device, timeout_s=FOREVER_S)
    received, memory = read(address, known)
    sending.result(HUNG_S)
    assert same(received, {name: tensor.detach() for name, tensor in model.named_parameters()})
    return memory


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_shared_models_memory_is_shared_and_opened_once(background, address, monkeypatch, device):
    """On a GPU, each time that memory is shared again it is kept for one more process, which would never come."""
    model, shared = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).share_memory()), []
    monkeypatch.setattr(source, "share_memory", lambda storage: shared.append(storage) or share_memory(storage))

    first = refit(background, address, model, device=device)
    with torch.no_grad():
        model[1].weight.mul_(2)  # as an optimizer does
    second = refit(background, address, model, known=first, device=device)

    assert first.names == {"1.weight", "1.bias"}
    assert second is first
    assert len(shared) == 2


def test_a_model_that_was_described_anew_is_opened_anew(background, address):
    model = torch.nn.Linear(8, 8).share_memory()
    first = refit(background, address, model)
    model.weight = torch.nn.Parameter(torch.randn(8, 8).share_memory_())

    assert refit(background, address, model, known=first) is not first


def test_only_a_process_new_to_the_memory_gets_its_address(background, address):
    model = torch.nn.Linear(8, 8).share_memory()
    known, other = refit(background, address, model), address.with_name("rank-1.sock")

    ends = [background(read, address, known), background(read, other, None)]
    send_ipc_zmq(Source(model, "parameters"), [address, other], timeout_s=HUNG_S)

    for end in ends:
        assert same(end.result(HUNG_S)[0], {name: tensor.detach() for name, tensor in model.named_parameters()})


def test_no_process_reads_before_all_have_accepted(background, address):
    model, other, got = torch.nn.Linear(8, 8).share_memory(), address.with_name("rank-1.sock"), []

    def accept():
        with IpcZmqStream(address, None, device=CPU, timeout_s=FOREVER_S) as stream:
            got.extend(stream.borrowed())

    ends = [background(accept), background(receive, other, Manifest.of(many(1).items()))]
    with pytest.raises(TransferError, match="refit rejected, nothing was loaded"):
        send_ipc_zmq(Source(model, "parameters"), [address, other], timeout_s=FOREVER_S)

    assert all(isinstance(end.exception(HUNG_S), RefitError) for end in ends)
    assert not got


def test_memory_that_cannot_be_opened_is_an_error_at_once(background, address, stranger):
    receiving = background(receive, address)
    stranger.send({"protocol": PROTOCOL, "memory": "key", "buffers": [], "buffer_bytes": 256})
    assert stranger.receive() == {"unknown": "key"}

    table = {"memory": [{"kind": "file", "path": "/proc/0/fd/0", "nbytes": 8}], "held": []}
    stranger.send({"manifest": [["a", "int8", [1]]], "ranks": [table]})

    with pytest.raises(TransferError, match="as one user"):
        stranger.receive()
    assert "as one user" in error_of(receiving)
