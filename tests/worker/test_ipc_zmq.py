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
def address(tmp_path_factory) -> Path:
    """Where a socket may be; pytest's own folders can be too deep for one."""
    return tmp_path_factory.mktemp("s") / "rank-0.sock"


@pytest.fixture
def stranger(address):
    """A peer that does not keep to our protocol."""
    channel = Channel(address, other="the engine", timeout_s=HUNG_S)
    yield channel
    channel.close()


def receive(path: Path, expected: Manifest | None = None, timeout_s: float = FOREVER_S) -> dict[str, torch.Tensor]:
    """The engine's end, whole."""
    with IpcZmqStream(path, expected, device=CPU, timeout_s=timeout_s) as stream:
        return dict(stream)


def send(addresses, value: dict[str, torch.Tensor], *, timeout_s: float = FOREVER_S, **options: object) -> None:
    """The trainer's end, whole."""
    send_ipc_zmq(value.items, addresses, buffer_bytes=1024, timeout_s=timeout_s, **options)


def is_open(path: Path) -> bool:
    """Whether somebody listens there, and the file has the rights that it keeps."""
    return path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_received_stays_when_the_trainer_fills_its_buffers_anew(background, address):
    sent, yielded = many(), []

    def source():
        for name, tensor in sent.items():
            yielded.append(name)
            yield name, tensor

    manifest = Manifest.of(sent.items())
    sending = background(send_ipc_zmq, source, [address], manifest=manifest, buffer_bytes=1024, timeout_s=FOREVER_S)

    with IpcZmqStream(address, None, device=CPU, timeout_s=FOREVER_S) as stream:
        tensors = iter(stream)
        first = [next(tensors), next(tensors)]
        while len(yielded) < 3:  # chunk 2 lies where chunk 0 was
            time.sleep(0.01)
        received = dict(first + list(tensors))

    sending.result(HUNG_S)
    assert len(list(manifest.chunks(1024))) == 12
    assert same(received, sent)


def test_nobody_waits_for_the_other_side_longer_than_its_limit(address):
    with pytest.raises(TransferError, match=rf"process at {address} did not answer within refit\.timeout_s = 0\.2 s"):
        send([address], many(), timeout_s=0.2)
    with pytest.raises(TransferError, match=r"the trainer did not answer within refit\.timeout_s = 0\.2 s"):
        receive(address, timeout_s=0.2)


def test_a_wait_can_be_given_up(background, address):
    over = threading.Event()
    sending = background(send, [address], many(), given_up=over.is_set)

    over.set()

    assert "given up while waiting" in error_of(sending)


def test_an_engine_waits_no_longer_than_its_socket_s_folder_is_there(background, address):
    receiving = background(receive, address)
    until(lambda: is_open(address), "the engine's socket")

    shutil.rmtree(address.parent)

    assert "given up while waiting for the trainer" in error_of(receiving)


def test_the_socket_of_the_owner_alone_is_gone_once_a_trainer_is_there(background, address, stranger):
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


def test_the_socket_is_gone_after_an_error(address):
    with pytest.raises(TransferError):
        receive(address, timeout_s=0.1)

    assert list(address.parent.iterdir()) == []


def test_a_file_that_a_killed_process_left_is_replaced(background, address):
    address.write_text("left behind", encoding="utf-8")
    receiving = background(receive, address)

    send([address], many(1))

    assert same(receiving.result(HUNG_S), many(1))


def test_another_protocol_is_an_error_on_both_sides(background, address, stranger):
    """The two sides may have different versions of this package."""
    receiving = background(receive, address)

    stranger.send({"protocol": 99})

    problem = f"the trainer speaks protocol 99, this engine {PROTOCOL}"
    with pytest.raises(TransferError, match=problem):
        stranger.receive()
    assert problem in error_of(receiving)


def test_a_chunk_out_of_turn_is_an_error(background, address, stranger):
    receiving = background(receive, address)
    stranger.send(FIRST)
    assert stranger.receive() == {}

    stranger.send({"chunk": 1})

    with pytest.raises(TransferError, match="did not send chunk 0 when it was due"):
        stranger.receive()
    assert "did not send chunk 0 when it was due" in error_of(receiving)


def test_a_path_that_is_too_long_for_a_socket_is_named_with_the_way_out(tmp_path):
    path = tmp_path / ("x" * 108)

    with pytest.raises(TransferError, match=r"is too long for a socket \(107 bytes\); set refit\.socket_dir"):
        receive(path)


def test_a_send_without_addresses_is_an_error():
    with pytest.raises(TransferError, match="call the worker's report_refit_addresses_async"):
        send([], many())


def test_a_lack_of_memory_is_an_error_on_both_sides_instead_of_a_crash(background, address):
    receiving = background(receive, address)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(RefitError, match=r"no 2097152 bytes of shared memory: File too large; free memory"):
            send_ipc_zmq({"a": torch.arange(1 << 18)}.items, [address], timeout_s=FOREVER_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert "the trainer reports: RefitError: refit: no 2097152 bytes" in error_of(receiving)


def refit(background, address, model, known=None, device="cpu"):
    """One refit of a model; returns the engine's end, and what it read in place."""
    sending = background(send_ipc_zmq, Source(model, "parameters"), [address], device=device, timeout_s=FOREVER_S)
    with IpcZmqStream(address, None, device=CPU, timeout_s=FOREVER_S, known=known) as stream:
        received = {name: tensor.clone() for tensors in stream.borrowed() for name, tensor in tensors}
    sending.result(HUNG_S)
    assert same(received, {name: tensor.detach() for name, tensor in model.named_parameters()})
    return stream.memory


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_shared_models_tensors_are_read_in_memory_that_is_shared_and_opened_once(background, address, monkeypatch, device):
    """On a GPU, each time that memory is shared again it is kept for one more process, which would never come."""
    model, shared = torch.nn.Sequential(torch.nn.Linear(8, 8).share_memory(), torch.nn.Linear(8, 8)), []
    monkeypatch.setattr(source, "share_memory", lambda storage: shared.append(storage) or share_memory(storage))

    first = refit(background, address, model, device=device)
    with torch.no_grad():
        model[0].weight.mul_(2)  # as an optimizer does
    second = refit(background, address, model, known=first, device=device)

    assert first.tensors.keys() == {"0.weight", "0.bias"}
    assert second is first
    assert len(shared) == 2
    assert torch.equal(first.tensors["0.weight"], model[0].weight)


def _moved(model):
    model.weight = torch.nn.Parameter(torch.randn(8, 8).share_memory_())


def _reshaped(model):
    model.weight.data = model.weight.data.view(16, 4)


@pytest.mark.parametrize("change", [_moved, _reshaped])
def test_a_tensor_of_another_place_or_shape_is_described_anew(background, address, change):
    model = torch.nn.Linear(8, 8).share_memory()
    first = refit(background, address, model)
    change(model)

    second = refit(background, address, model, known=first)

    assert second is not first
    assert torch.equal(second.tensors["weight"], model.weight)


def test_only_a_process_that_does_not_know_the_memory_gets_its_address(background, address):
    model = torch.nn.Linear(8, 8).share_memory()
    known, other = refit(background, address, model), address.with_name("rank-1.sock")

    def end(path, memory):
        with IpcZmqStream(path, None, device=CPU, timeout_s=FOREVER_S, known=memory) as stream:
            return {name: tensor.clone() for tensors in stream.borrowed() for name, tensor in tensors}

    ends = [background(end, address, known), background(end, other, None)]
    send_ipc_zmq(Source(model, "parameters"), [address, other], timeout_s=HUNG_S)

    for received in ends:
        assert all(torch.equal(tensor, received.result(HUNG_S)[name]) for name, tensor in model.named_parameters())


def test_a_model_in_memory_of_its_own_goes_through_the_buffers(background, address):
    assert refit(background, address, torch.nn.Linear(8, 8)) is None


def test_memory_that_cannot_be_opened_is_an_error_before_anything_is_loaded(background, address, stranger):
    receiving = background(receive, address)
    stranger.send({"protocol": PROTOCOL, "memory": "key", "buffers": [], "buffer_bytes": 256})
    assert stranger.receive() == {"unknown": "key"}

    table = {"memory": [{"kind": "file", "path": "/proc/0/fd/0", "nbytes": 8}], "held": []}
    stranger.send({"manifest": [["a", "int8", [1]]], "ranks": [table]})

    with pytest.raises(TransferError, match="as one user"):
        stranger.receive()
    assert "as one user" in error_of(receiving)
