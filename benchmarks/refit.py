"""Refits of a large model on GPUs, beside copies of the same tensors and vLLM's own engines.

    python benchmarks/refit.py            a table, of the Qwen3-8B shape (16.4 GB in bf16); one GPU of 80 GB, two for NCCL
    python benchmarks/refit.py --json     the same as JSON
    REFIT_MODEL=30B-A3B python …          with 12 layers of Qwen3-30B-A3B instead: 128 experts in each
    REFIT_TRANSPORT=collective python …   by this transport alone
    REFIT_ONLY_OURS=1 python …            our worker alone, without the account of updates and then with it
    REFIT_ONLY_NATIVE=1 python …          vLLM's own engines alone, without and with the quirk recorded-updates

Weights are random, the policy is a transformers model on the engine's GPU (IPC) or on the second one (NCCL). Every refit is
the whole of it: pause, start, update, finish, resume. The lines with two spaces in front say where its time goes. vLLM's own
engines are driven as its documentation says: by static methods until 0.27, from 0.28 on by trainer engines with a state.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import measure

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # vLLM's own IPC engine sends pickles

MODEL = os.environ.get("REFIT_MODEL", "8B")
LAYERS = int(os.environ.get("REFIT_LAYERS", "0")) or None
#: An engine's calls, and by what they are known: the weights are taken in a call of ours to its workers, or in vLLM's own.
_PHASES = {
    "pause_scheduler_async": "pause",
    "collective_rpc": "take",
    "start_weight_update": "start",
    "update_weights": "update",
    "finish_weight_update": "finish",
    "resume_generation": "resume",
}
#: Bytes of the buffer that vLLM's IPC engine packs tensors into; its default, 1 GiB, is too small for the embeddings.
_BUFFER = 2 << 30
_problems: list[str] = []


def policy(folder: Path, device: str) -> Any:
    """The trainer's model, with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16).eval()


class Collected:
    """Milliseconds that this process, the trainer's, has spent on garbage collection."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._start = 0.0
        gc.callbacks.append(self._at_collection)

    def _at_collection(self, phase: str, _: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "stop":
            self.ms += (now - self._start) * 1e3
        self._start = now


_collected = Collected()


class Phases:
    """Milliseconds of each of an engine's calls during the refits that are counted."""

    def __init__(self, llm: Any) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        for name in _PHASES:
            owner = llm.engine_core if name == "pause_scheduler_async" else llm
            setattr(owner, name, partial(self._timed, name, getattr(owner, name)))

    async def _timed(self, name: str, call: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return await call(*arguments, **options)
        finally:
            if name != "collective_rpc" or ("args" in options and options["args"][0].endswith(":take")):
                self.times[name].append((time.perf_counter() - start) * 1e3)


async def repeated(
    what: str, call: Callable[[], Awaitable[object]], rounds: int, phases: Phases | None = None
) -> list[measure.Row]:
    """Times a call; the first is not counted."""
    times = []
    for number in range(rounds + 1):
        collected = _collected.ms
        start = time.perf_counter()
        await call()
        if number:
            times.append((time.perf_counter() - start) * 1e3)
            collected = _collected.ms - collected
            print(f"{what}: {times[-1]:.1f} ms, {collected:.1f} of them Python's garbage collection here", file=sys.stderr)
        elif phases is not None:
            phases.times.clear()
    found = [row(what, times)]
    if phases is not None:
        found += [row(f"  {phase}", phases.times[name]) for name, phase in _PHASES.items() if phases.times[name]]
    return found


def row(what: str, times: list[float]) -> measure.Row:
    """One line of the table."""
    return measure.Row(what, min(times), statistics.median(times), len(times))


def copies(source: Any, device: str, rounds: int) -> list[float]:
    """Milliseconds of a plain copy of every tensor to a device, into memory that is there."""
    import torch

    tensors = list(source.parameters())
    targets = [torch.empty_like(tensor, device=device) for tensor in tensors]
    times = []
    for _ in range(rounds + 1):
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
        start = time.perf_counter()
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor.detach(), non_blocking=True)
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
        times.append((time.perf_counter() - start) * 1e3)
    return times[1:]


def _broadcast(rank: int, port: int, shapes: list[list[int]], rounds: int, results: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    tensors = [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]
    times = []
    for _ in range(rounds + 1):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for tensor in tensors:
            dist.broadcast(tensor, 0)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    if rank == 1:
        results.put(times[1:])
    dist.destroy_process_group()


def broadcasts(source: Any, rounds: int) -> list[float]:
    """Milliseconds of an NCCL broadcast of every tensor between two processes."""
    import torch.multiprocessing as mp

    from worker.refit.transport.channel import free_port

    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    shapes = [list(tensor.shape) for tensor in source.parameters()]
    mp.start_processes(_broadcast, (free_port("127.0.0.1"), shapes, rounds, results), nprocs=2, start_method="spawn")
    return list(results.get())


def arguments(folder: Path) -> dict[str, Any]:
    """What every engine here starts with."""
    return {
        "model": str(folder),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 1024,
        "gpu_memory_utilization": 0.35,
        "kv_cache_memory_bytes": 1 << 30,  # the rest is for senders, whose memory an engine that has ended may still hold
        "skip_tokenizer_init": True,
    }


async def ours(folder: Path, models: dict[str, Any], rounds: int, found: list[measure.Row]) -> None:
    """Our worker, by each transport; rows are added as they come."""
    from quirks_core.ledger.account import LEDGER_VARIABLE
    from worker import VllmAsyncGenerationWorker
    from worker.refit.engine import ledger

    options = arguments(folder)
    medians: dict[str, float] = {}
    ledgers = ("off", "warn") if os.environ.get("REFIT_ONLY_OURS") else (os.environ.get(LEDGER_VARIABLE, "warn"),)
    for (transport, model), mode in itertools.product(models.items(), ledgers):
        os.environ[LEDGER_VARIABLE] = mode
        what = f"refit, {transport}{', without a ledger' if mode == 'off' else ''}"
        engine = {key: value for key, value in options.items() if key not in ("model", "skip_tokenizer_init")}
        engine["vllm_kwargs"] = {"skip_tokenizer_init": True}
        config = {"model": str(folder), "engine": engine, "refit": {"transport": transport}}
        worker = VllmAsyncGenerationWorker(config)
        try:
            await worker.post_init_async()
            for _ in range(2):  # the first records, the second compares what was recorded with the model's loaders
                start = time.perf_counter()
                await worker.refit_async(model)
                took = f"{(time.perf_counter() - start) * 1e3:.0f} ms"
                print(f"{transport}, {worker.last_refit}: {took} {worker.last_refit.layers[:4]}", file=sys.stderr)
            phases = Phases(worker.engine.llm)
            found += (rows := await repeated(what, partial(worker.refit_async, model), rounds, phases))
            medians[mode] = rows[0].median_ms
            if len(medians) == len(ledgers) == 2:
                print(f"{transport}: the ledger adds {medians['warn'] - medians['off']:.1f} ms to a refit", file=sys.stderr)
                medians.clear()
            (account,) = await worker.engine.call(ledger.account)
            if account is not None:
                found.append(row("  ledger", [line["seconds"] * 1e3 for line in account["lines"][-rounds:]]))
            if worker.last_refit is None or worker.last_refit.reloaded:
                _problems.append(f"{transport}: not everything was copied: {worker.last_refit}")
            start = time.perf_counter()
            differing = await worker.verify_refit_async(model)
            found.append(row(f"verify, {transport}", [(time.perf_counter() - start) * 1e3]))
            if differing:
                _problems.append(f"after a refit by {transport} {len(differing)} tensors differ: {list(differing.items())[:3]}")
        finally:
            await worker.shutdown()


async def native(folder: Path, models: dict[str, Any], rounds: int, found: list[measure.Row]) -> None:
    """The engines that come with vLLM, alone and with the quirk ``recorded-updates``; both end with the same bits.

    Rows are added as they come.
    """
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from quirks_core.hook.in_force import quirks_for
    from worker.engine import vllm_adapter

    opened = _static_sender if hasattr(NCCLWeightTransferEngine, "trainer_send_weights") else _stateful_sender
    for transport, packed in ((one, packed) for one in models for packed in ((False, True) if one == "ipc_zmq" else (True,))):
        model = models[transport].requires_grad_(False)
        backend = {"ipc_zmq": "ipc", "collective": "nccl"}[transport]
        what = f"vLLM's own, {backend}{', packed' if packed else ''}"
        plain: measure.Row | None = None
        held: list[dict[str, str]] = []
        for is_recorded in (False, True):
            options = AsyncEngineArgs(**arguments(folder), weight_transfer_config={"backend": backend})
            with contextlib.ExitStack() as stack:
                if is_recorded:
                    os.environ["MODEL_QUIRKS_FORCE"] = "recorded-updates"
                    stack.callback(os.environ.pop, "MODEL_QUIRKS_FORCE")
                    options = stack.enter_context(quirks_for(options, purpose="rollout")).engine_args
                llm = AsyncLLM.from_engine_args(options)
                stack.callback(vllm_adapter.stop_engine, llm)
                phases = Phases(llm)
                send = await opened(llm, backend, model, packed=packed)

                async def refit(llm: Any = llm, send: Callable[[], Awaitable[None]] = send) -> None:
                    await llm.pause_generation(mode="keep", clear_cache=True)
                    await send()
                    await llm.resume_generation()

                if is_recorded:
                    for turn in ("recorded", "compared with the loaders"):
                        start = time.perf_counter()
                        await refit()
                        found.append(row(f"  {turn}, once", [(time.perf_counter() - start) * 1e3]))
                rows = await repeated(f"{what}{', recorded' if is_recorded else ''}", refit, rounds, phases)
                if plain is None:
                    plain = rows[0]
                else:
                    times = replace(rows[0], ratio=round(plain.median_ms / rows[0].median_ms, 2), to=plain.what)
                    found += [times, *rows[1:]]
                    print(f"{times.what}: {times.ratio} x as fast", await llm.collective_rpc(ways), file=sys.stderr)
                held.append(await _after_another(llm, model, refit))
            if plain is rows[0]:
                found += rows
        if differing := [name for name in held[0] if held[0][name] != held[1].get(name)]:
            _problems.append(f"{what}: {len(differing)} tensors differ with recorded-updates: {differing[:3]}")
        print(f"{what}: {len(held[0])} tensors compared, {len(differing)} differ", file=sys.stderr)


async def _after_another(llm: Any, model: Any, refit: Callable[[], Awaitable[None]]) -> dict[str, str]:
    """Sends other weights, and returns the digests of all of the engine's tensors; the model gets its weights back."""
    _negate(model)
    try:
        await refit()
        (found,) = await llm.collective_rpc(digests)
    finally:
        _negate(model)
    return dict(found)


def _negate(model: Any) -> None:
    import torch

    for parameter in model.parameters():
        parameter.data.neg_()
    torch.cuda.synchronize(parameter.device)


def digests(worker: Any) -> dict[str, str]:
    """Runs in a worker: a digest of every byte of every parameter and buffer of its model, by name."""
    import hashlib
    from concurrent.futures import ThreadPoolExecutor

    import torch

    def digest(tensor: torch.Tensor) -> str:
        return hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().data).hexdigest()

    model = worker.model_runner.get_model()
    tensors = {name: tensor for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.numel()}
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))


def ways(worker: Any) -> str:
    """Runs in a worker: how the last update came into its model."""
    from worker.refit.engine import updates

    found = updates.of(worker.model_runner.get_model())
    return "not watched" if found is None else f"{found.copied} tensors copied, {found.loaded} loaded"


class Control:
    """The calls by which a trainer engine of vLLM drives an ``AsyncLLM``, from threads of its own."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._loop = asyncio.get_running_loop()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Has the workers meet the trainer."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._wait(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info)))

    def start_weight_update(self) -> None:
        """Begins an update."""
        self._wait(self._llm.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        """Has the workers receive weights."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self._wait(self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends an update; the weights get no label here."""
        del weight_version
        self._wait(self._llm.finish_weight_update())

    def _wait(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()


async def _stateful_sender(llm: Any, backend: str, model: Any, *, packed: bool) -> Callable[[], Awaitable[None]]:
    """The way from 0.28 on."""
    from vllm.distributed.weight_transfer import ipc_engine, nccl_engine
    from vllm.distributed.weight_transfer.base import ModuleSource

    from worker.refit.transport.channel import free_port

    kind: Any
    if backend == "ipc":
        kind, on_gpu = ipc_engine.IPCTrainerWeightTransferEngine, 0
        info = ipc_engine.IPCTrainerInitInfo(packed=packed, packed_buffer_size_bytes=_BUFFER, rank=0)
    else:
        meeting = {"master_address": "127.0.0.1", "master_port": free_port("127.0.0.1"), "world_size": 2}
        kind, info, on_gpu = nccl_engine.NCCLTrainerWeightTransferEngine, nccl_engine.NCCLTrainerInitInfo(**meeting, rank=0), 1
    opening = partial(kind.trainer_init, info, client=Control(llm), source=ModuleSource(model))
    trainer = await asyncio.to_thread(_on, on_gpu, opening)
    return lambda: asyncio.to_thread(_on, on_gpu, trainer.send_weights)


async def _static_sender(llm: Any, backend: str, model: Any, *, packed: bool) -> Callable[[], Awaitable[None]]:
    """The way until 0.27."""
    from dataclasses import asdict

    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    from worker.refit.transport.channel import free_port

    pairs = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
    control = Control(llm)
    if backend == "ipc":
        arguments = {
            "send_mode": lambda info: control.update_weights(asdict(info)),
            "packed": packed,
            "packed_buffer_size_bytes": _BUFFER,
        }
        sending = partial(asyncio.to_thread, lambda: IPCWeightTransferEngine.trainer_send_weights(iter(pairs), arguments))
        receiving = None
    else:
        meeting = {"master_address": "127.0.0.1", "master_port": free_port("127.0.0.1"), "world_size": 2}
        group, _ = await asyncio.gather(
            asyncio.to_thread(_on, 1, partial(NCCLWeightTransferEngine.trainer_init, meeting)),
            asyncio.to_thread(control.init_weight_transfer_engine, {**meeting, "rank_offset": 1}),
        )
        options = {"group": group, "packed": True}
        sending = partial(
            asyncio.to_thread, _on, 1, lambda: NCCLWeightTransferEngine.trainer_send_weights(iter(pairs), options)
        )
        described = {
            "names": [name for name, _ in pairs],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in pairs],
            "shapes": [list(tensor.shape) for _, tensor in pairs],
            "packed": True,
        }
        receiving = partial(asyncio.to_thread, control.update_weights, described)

    async def send() -> None:
        await llm.start_weight_update()
        await asyncio.gather(sending(), *([receiving()] if receiving else []))
        await llm.finish_weight_update()

    return send


def _on(gpu: int, call: Callable[[], Any]) -> Any:
    import torch

    with torch.cuda.device(gpu):
        return call()


async def everything(folder: Path, rounds: int) -> list[measure.Row]:
    """All measurements, on the same tensors."""
    import torch

    here = policy(folder, "cuda:0")
    found = [row("copy on one GPU, tensor by tensor", copies(here, "cuda:0", rounds))]
    models = {"ipc_zmq": here}
    if torch.cuda.device_count() > 1:
        found.append(row("copy from GPU to GPU", copies(here, "cuda:1", rounds)))
        torch.cuda.empty_cache()
        found.append(row("NCCL broadcast, tensor by tensor", broadcasts(here, rounds)))
        models["collective"] = policy(folder, "cuda:1")
    if chosen := os.environ.get("REFIT_TRANSPORT"):
        models = {chosen: models[chosen]}
    parts = (
        (ours,) if os.environ.get("REFIT_ONLY_OURS") else (native,) if os.environ.get("REFIT_ONLY_NATIVE") else (ours, native)
    )
    for part in parts:
        try:
            await part(folder, models, rounds, found)
        except Exception as error:  # the rest is worth having
            import traceback

            traceback.print_exc()
            _problems.append(f"{part.__name__}: {type(error).__name__}: {error}")
    return found


def measured(rounds: int) -> Iterable[measure.Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(everything(measure.qwen3(Path(folder), MODEL, layers=LAYERS), rounds))


if __name__ == "__main__":
    import torch

    if not torch.cuda.is_available():
        print("benchmarks/refit.py: needs a GPU; its last figures are in docs/results/performance.md")
        sys.exit(0)
    sys.exit(measure.main(__doc__, measured, rounds=7, notes=lambda: _problems))
