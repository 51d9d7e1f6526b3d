"""The transport between a trainer and the engine processes of one machine: real sockets, real memory, real deaths."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
import zmq

from worker.errors import RefitRejectedError, TransferError
from worker.refit import Manifest, send_ipc_zmq
from worker.refit.ipc_zmq import PROTOCOL, IpcZmqStream

CPU = torch.device("cpu")
#: Seconds after which a test has hung; far more than anything here takes.
HUNG_S = 60
#: Seconds that nobody may have to wait for the end of: whoever does takes the wrong way to an error.
FOREVER_S = 600.0

_SENDER = """
import sys, time, torch
from worker.refit import send_ipc_zmq

file, buffer_bytes, stop_after, *addresses = sys.argv[1:]
tensors = torch.load(file)

def source():
    for index, item in enumerate(tensors.items()):
        if index == int(stop_after):
            print("half-way", flush=True)
            time.sleep(600)
        yield item

manifest = __import__("worker.refit").refit.Manifest.of(tensors.items())
send_ipc_zmq(source, addresses, manifest=manifest, buffer_bytes=int(buffer_bytes), timeout_s=600)
print("sent", flush=True)
"""

_RECEIVER = """
import sys, time, torch
from pathlib import Path
from worker.refit.ipc_zmq import IpcZmqStream

with IpcZmqStream(Path(sys.argv[1]), None, device=torch.device("cpu"), timeout_s=600) as stream:
    next(iter(stream))
    print("half-way", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def address(tmp_path_factory) -> Path:
    """Where a socket may be; pytest's own folders can be too deep for one."""
    return tmp_path_factory.mktemp("s") / "rank-0.sock"


@pytest.fixture
def stranger(address):
    """A peer that speaks ZMQ, but not our protocol."""
    context = zmq.Context()
    socket = context.socket(zmq.REQ)
    socket.linger = 0
    socket.rcvtimeo = HUNG_S * 1000
    socket.connect(f"ipc://{address}")
    yield socket
    socket.close()
    context.term()


def receive(path: Path, expected: Manifest | None = None, timeout_s: float = FOREVER_S) -> dict[str, torch.Tensor]:
    """The engine's end, whole."""
    with IpcZmqStream(path, expected, device=CPU, timeout_s=timeout_s) as stream:
        return dict(stream)


def many(count: int = 12) -> dict[str, torch.Tensor]:
    """Tensors of 1 KiB each, all different."""
    return {f"t{index}": torch.full((256,), float(index)) for index in range(count)}


def one_each(value: dict[str, torch.Tensor], *, buffer_bytes: int = 1024, timeout_s: float = FOREVER_S, **options: object):
    """Arguments of a send."""
    return {"tensors": value.items, "buffer_bytes": buffer_bytes, "timeout_s": timeout_s, **options}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and torch.equal(one[name].reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8))
        for name in one
    )


def is_open(path: Path) -> bool:
    """Whether somebody listens there, and the file has the rights that it keeps."""
    return path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o600


def error_of(future: Future) -> str:
    """What went wrong over there."""
    with pytest.raises(TransferError) as caught:
        future.result(HUNG_S)
    return str(caught.value)


def test_every_dtype_and_shape_arrives_in_another_process_as_it_was(start, address, tmp_path):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 255, (6, 8), dtype=torch.uint8, generator=generator)
    sent = {
        str(dtype): noise.clone().view(dtype)
        for dtype in (
            torch.bfloat16,
            torch.float16,
            torch.float32,
            torch.int8,
            torch.int64,
            torch.float8_e4m3fn,
            torch.complex64,
        )
    }
    sent |= {"flags": noise > 100, "scalar": torch.tensor(1.5), "none": torch.zeros(0, 3), "nan": torch.tensor([float("nan")])}
    sent["transposed"] = torch.arange(6.0).reshape(2, 3).t()
    torch.save(sent, tmp_path / "tensors.pt")
    start(_SENDER, tmp_path / "tensors.pt", 512, -1, address)

    received = receive(address, Manifest.of(sent.items()))

    assert same(received, {name: tensor.contiguous() for name, tensor in sent.items()})


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
        first = [next(tensors)]
        while len(yielded) < 3:  # chunk 2 lies where chunk 0 was
            time.sleep(0.01)
        received = dict(first + list(tensors))

    sending.result(HUNG_S)
    assert len(list(manifest.chunks(1024))) == 12
    assert same(received, sent)


def test_every_process_of_an_engine_receives_everything(background, address):
    addresses = [address.with_name(f"rank-{rank}.sock") for rank in range(2)]
    receiving = [background(receive, path) for path in addresses]

    send_ipc_zmq(addresses=addresses, **one_each(many()))

    assert all(same(future.result(HUNG_S), many()) for future in receiving)


def test_a_trainer_may_send_again_at_once(background, address):
    def receive_often():
        return [receive(address) for _ in range(20)]

    receiving = background(receive_often)

    for _ in range(20):
        send_ipc_zmq(addresses=[address], **one_each(many(3)))

    assert all(same(received, many(3)) for received in receiving.result(HUNG_S))


def test_a_rejected_manifest_reaches_both_sides_before_any_value_is_read(background, address):
    passes = []

    def source():
        passes.append(1)
        yield from many(2).items()

    receiving = background(receive, address, Manifest.of(many(3).items()))

    with pytest.raises(TransferError, match=r"reports: .*refit rejected, nothing was loaded: 1 missing: t2"):
        send_ipc_zmq(source, [address], manifest=Manifest.of(many(2).items()), timeout_s=FOREVER_S)

    with pytest.raises(RefitRejectedError, match="1 missing: t2"):
        receiving.result(HUNG_S)
    assert not passes


def test_a_process_that_accepted_gets_no_tensor_when_another_one_rejects(background, address):
    addresses = [address.with_name(f"rank-{rank}.sock") for rank in range(2)]
    got = []

    def receive_some():
        with IpcZmqStream(addresses[0], None, device=CPU, timeout_s=FOREVER_S) as stream:
            got.extend(stream)

    accepting, rejecting = background(receive_some), background(receive, addresses[1], Manifest.of(many(3).items()))

    with pytest.raises(TransferError, match="1 missing: t2"):
        send_ipc_zmq(addresses=addresses, **one_each(many(2)))

    assert "died or closed its socket" in error_of(accepting)
    assert isinstance(rejecting.exception(HUNG_S), RefitRejectedError)
    assert not got


def test_a_trainer_that_is_killed_half_way_is_missed_at_once(start, background, address, tmp_path):
    torch.save(many(), tmp_path / "tensors.pt")
    trainer = start(_SENDER, tmp_path / "tensors.pt", 1024, 5, address)
    receiving = background(receive, address)
    assert trainer.stdout.readline() == "half-way\n"

    trainer.kill()

    assert "the trainer died or closed its socket half-way" in error_of(receiving)


def test_an_engine_process_that_is_killed_half_way_is_missed_at_once(start, background, address):
    engine = start(_RECEIVER, address)
    sending = background(lambda: send_ipc_zmq(addresses=[address], **one_each(many())))
    assert engine.stdout.readline() == "half-way\n"

    engine.kill()

    assert f"the engine's process at {address} died or closed its socket half-way" in error_of(sending)


def test_a_trainer_whose_tensors_cannot_be_had_says_why(background, address):
    def source():
        yield "t0", torch.zeros(256)
        raise RuntimeError("the optimizer has gone")

    receiving = background(receive, address)

    with pytest.raises(RuntimeError, match="the optimizer has gone"):
        send_ipc_zmq(source, [address], manifest=Manifest.of(many(2).items()), buffer_bytes=1024, timeout_s=FOREVER_S)

    assert "the trainer reports: RuntimeError: the optimizer has gone" in error_of(receiving)


def test_a_receiver_that_fails_says_why(background, address):
    def break_down():
        with IpcZmqStream(address, None, device=CPU, timeout_s=FOREVER_S) as stream:
            next(iter(stream))
            raise RuntimeError("no such layer")

    receiving = background(break_down)

    with pytest.raises(TransferError, match="reports: RuntimeError: no such layer"):
        send_ipc_zmq(addresses=[address], **one_each(many()))

    assert isinstance(receiving.exception(HUNG_S), RuntimeError)


def test_a_trainer_waits_for_an_engine_no_longer_than_its_limit(address):
    with pytest.raises(TransferError, match=r"did not answer within refit\.timeout_s = 0\.2 s"):
        send_ipc_zmq(addresses=[address], **one_each(many(), timeout_s=0.2))


def test_an_engine_waits_for_a_trainer_no_longer_than_its_limit(address):
    with pytest.raises(TransferError, match=r"the trainer did not answer within refit\.timeout_s = 0\.2 s"):
        receive(address, timeout_s=0.2)


def test_a_trainer_that_falls_silent_half_way_is_given_up_after_the_limit(background, address):
    silent = threading.Event()

    def source():
        yield "t0", torch.zeros(256)
        yield "t1", torch.zeros(256)
        silent.wait(HUNG_S)
        yield "t2", torch.zeros(256)

    manifest = Manifest.of(many(3).items())
    sending = background(send_ipc_zmq, source, [address], manifest=manifest, buffer_bytes=1024, timeout_s=FOREVER_S)

    with pytest.raises(TransferError, match="the trainer did not answer within"):
        receive(address, timeout_s=0.3)

    silent.set()
    assert isinstance(sending.exception(HUNG_S), TransferError)


def test_a_wait_can_be_given_up(background, address):
    over = threading.Event()
    sending = background(lambda: send_ipc_zmq(addresses=[address], **one_each(many(), given_up=over.is_set)))

    over.set()

    assert "given up while waiting" in error_of(sending)


def test_an_engine_waits_no_longer_than_its_socket_s_folder_is_there(background, address):
    receiving = background(receive, address)
    while not is_open(address):
        time.sleep(0.01)

    shutil.rmtree(address.parent)

    assert "given up while waiting for the trainer" in error_of(receiving)


def test_the_socket_is_the_owners_alone_and_gone_once_a_trainer_is_there(background, address, stranger):
    before = os.umask(0)
    try:
        receiving = background(receive, address)
        while not is_open(address):
            time.sleep(0.01)
            assert not receiving.done()
    finally:
        os.umask(before)

    stranger.send_json({"protocol": PROTOCOL, "manifest": [["a", "int8", [1]]], "buffers": [], "buffer_bytes": 256})

    assert stranger.recv_json() == {}
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

    send_ipc_zmq(addresses=[address], **one_each(many(1)))

    assert same(receiving.result(HUNG_S), many(1))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\x80\x04pickle", "sent something that is no JSON"),
        (b"[1, 2]", "sent list instead of a message"),
        (b'{"protocol": 99}', "the trainer speaks protocol 99, this engine 1"),
        (b"{}", "the trainer speaks protocol None, this engine 1"),
        (b'{"protocol": 1}', "the trainer's first message makes no sense: KeyError: 'manifest'"),
        (b'{"protocol": 1, "manifest": [["a", "int9", [1]]]}', "the trainer's first message makes no sense: ValueError"),
        (b'{"protocol": 1, "manifest": [["a"]]}', "the trainer's first message makes no sense: ValueError"),
    ],
)
def test_a_stranger_is_told_what_is_wrong_with_its_message(background, address, stranger, message, told):
    receiving = background(receive, address)

    stranger.send(message)

    assert told in json.loads(stranger.recv())["error"]
    assert told in error_of(receiving)


def test_a_chunk_out_of_turn_is_an_error(background, address, stranger):
    receiving = background(receive, address)
    stranger.send_json({"protocol": PROTOCOL, "manifest": [["a", "int8", [1]]], "buffers": [], "buffer_bytes": 256})
    assert stranger.recv_json() == {}

    stranger.send_json({"chunk": 1})

    assert "did not send chunk 0 when it was due" in stranger.recv_json()["error"]
    assert "did not send chunk 0 when it was due" in error_of(receiving)


def test_memory_of_a_process_that_is_gone_is_an_error_that_says_what_is_needed(background, address, stranger):
    receiving = background(receive, address)
    handle = {"kind": "file", "path": "/proc/self/fd/99999", "nbytes": 256}

    stranger.send_json({"protocol": PROTOCOL, "manifest": [["a", "int8", [1]]], "buffers": [handle] * 2, "buffer_bytes": 256})

    assert "must run on one machine, in one process namespace, as one user" in stranger.recv_json()["error"]
    assert "cannot be opened" in error_of(receiving)


def test_a_path_that_is_too_long_for_a_socket_is_named_with_the_way_out(tmp_path):
    path = tmp_path / ("x" * 108)

    with pytest.raises(TransferError, match=r"is too long for a socket \(107 bytes\); set refit\.socket_dir"):
        receive(path)


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(TransferError, match="cannot be opened"):
        receive(tmp_path / "nowhere" / "s")


def test_a_send_to_nobody_is_an_error():
    with pytest.raises(TransferError, match="ask the worker's report_refit_addresses_async"):
        send_ipc_zmq(addresses=[], **one_each(many()))


def test_a_name_that_comes_twice_is_rejected_before_anybody_is_asked(address):
    with pytest.raises(RefitRejectedError, match="1 sent twice: a"):
        send_ipc_zmq(lambda: [("a", torch.zeros(1))] * 2, [address], timeout_s=FOREVER_S)


_BOTH = """
import resource, sys, threading, torch
from pathlib import Path
from worker.refit import send_ipc_zmq
from worker.refit.ipc_zmq import IpcZmqStream

limit, address = int(sys.argv[1]), Path(sys.argv[2])
sent = {"a": torch.arange(1 << 18)}
got, errors = {}, []

def receive():
    try:
        with IpcZmqStream(address, None, device=torch.device("cpu"), timeout_s=600) as stream:
            got.update(stream)
    except Exception as error:
        errors.append(error)

thread = threading.Thread(target=receive)
thread.start()
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    send_ipc_zmq(sent.items, [address], timeout_s=600)
except Exception as error:
    errors.append(error)
thread.join()
print([f"{type(error).__name__}: {error}" for error in errors] or torch.equal(got["a"], sent["a"]))
"""


def test_memory_that_cannot_be_had_is_an_error_on_both_sides_and_kills_nobody(start, address):
    child = start(_BOTH, 1 << 20, address)

    out, err = child.communicate(timeout=HUNG_S)

    assert child.returncode == 0, err
    assert "RefitError: refit: no 2097152 bytes of shared memory: File too large; free memory, or lower refit.buffer_mb" in out
    assert "TransferError: refit: the trainer reports: " in out


def test_a_full_dev_shm_does_not_matter(address):
    """In a mount namespace of its own, so that nobody else's /dev/shm is filled."""
    full = (
        "mount -t tmpfs -o size=64k full /dev/shm && { cat /dev/zero > /dev/shm/brim 2> /dev/null; true; } "
        "&& df --output=avail /dev/shm"
    )
    private = ["unshare", "--mount", "sh", "-c"]
    probe = subprocess.run([*private, full], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    assert probe.stdout.split()[-1] == "0"

    found = subprocess.run(
        [*private, f'{full} > /dev/null && exec "$0" "$@"', sys.executable, "-c", _BOTH, "0", str(address)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HUNG_S,
    )

    assert found.stdout.strip() == "True", found.stderr
