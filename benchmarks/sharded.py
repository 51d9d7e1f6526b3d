"""Refits from a sharded trainer into a sharded engine on other GPUs, beside a copy over the same links and vLLM's own engine.

    python benchmarks/sharded.py             Qwen3-30B-A3B's shape (61 GB in bf16), two GPUs on each side
    SHARDED_LAYERS=4 python …                with fewer layers
    SHARDED_TRAINERS=1 SHARDED_ENGINES=1 …   with other numbers of GPUs
    SHARDED_WAYS=TP,EP,FP8,native,IPC …      some of the engines alone; FP8-IPC, too

The trainer is an FSDP2 model with random weights that are made on its GPUs, one process for each. The engine starts from dummy
weights. A refit is all of it: pause, update, resume. "gathered" is the first way of the same transport: each tensor is gathered
by the trainer's ranks and broadcast by rank 0, as vLLM's own NCCL engine does. By IPC a rank of the trainer shares its GPU with
one of the engine, where "gathered" puts whole tensors into a buffer.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import measure
from refit import Control, row

TRAINERS, ENGINES = int(os.environ.get("SHARDED_TRAINERS", "2")), int(os.environ.get("SHARDED_ENGINES", "2"))
LAYERS = int(os.environ.get("SHARDED_LAYERS", "48"))
WAYS = os.environ.get("SHARDED_WAYS", "TP,EP,FP8,native,IPC").split(",")
_IP = "127.0.0.1"
_problems: list[str] = []


def trainer(rank: int, first: int, folder: Path, port: int, pipe: Any, calls: Any) -> None:
    """One rank: makes its shards on its GPU, counted from the first, then does what it reads from the pipe."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM

    from worker.refit import CollectiveSender, Source, send_ipc_zmq

    torch.set_grad_enabled(False)
    device = torch.device("cuda", first + rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"tcp://{_IP}:{port}", rank=rank, world_size=TRAINERS, device_id=device)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    mesh = dist.init_device_mesh("cuda", (TRAINERS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    for parameter in model.parameters():
        parameter.to_local().normal_(0, 0.02)
    sender: Any = None
    send: Any = None
    pipe.send("ready")
    while (command := pipe.recv()) is not None:
        what, *arguments = command
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        try:
            if what == "open":
                port, size = arguments
                sender = CollectiveSender(_IP, port, world_size=size, rank=rank, device=device)
                send = sender.send
            elif what == "open IPC":
                (addresses,) = arguments
                send = partial(send_ipc_zmq, addresses=[addresses[rank]], device=device)
            elif what == "open vLLM's":
                sender = _native(rank, model, *arguments, calls)
            elif what == "negate":
                for parameter in model.parameters():
                    parameter.to_local().neg_()
            elif what == "pieces":
                send(Source(model, "parameters"))
            elif what == "gathered":
                source = Source(model, "parameters")
                send(source.__call__, manifest=source.manifest)
            elif what == "vLLM's":
                sender.send_weights()
            elif what == "close" and sender is not None:
                getattr(sender, "close", getattr(sender, "shutdown", None))()
            torch.cuda.synchronize()
        except Exception:
            traceback.print_exc()
            pipe.send("failed")
        else:
            pipe.send((torch.cuda.max_memory_allocated() - before) / 1e9)
    dist.destroy_process_group()


def _native(rank: int, model: Any, port: int, world_size: int, calls: Any) -> Any:
    """VLLM's own sender, of the same tensors under the same names."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

    from worker.refit import Source

    class Gathered(WeightSource):  # type: ignore[misc]
        def __init__(self) -> None:
            self.source = Source(model, "parameters")

        @cached_property
        def metadata(self) -> list[Any]:
            return [ParamMeta(spec.name, spec.torch_dtype, spec.shape) for spec in self.source.manifest.tensors]

        def iter_full(self) -> Iterator[tuple[str, Any]]:
            yield from self.source()

        iter_local = iter_full

    info = NCCLTrainerInitInfo(master_address=_IP, master_port=port, world_size=world_size, rank=rank)
    return NCCLTrainerWeightTransferEngine.trainer_init(info, client=_Calls(calls), source=Gathered())


class _Calls:
    """The calls of vLLM's trainer engine to an inference engine in another process."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            self._pipe.send((name, arguments))
            if (answer := self._pipe.recv()) is not None:
                raise RuntimeError(answer)

        return call


class Trainers:
    """All ranks of the trainer."""

    def __init__(self, folder: Path, first: int) -> None:
        """Starts them, on GPUs from the first."""
        from worker.refit.transport.channel import free_port

        context = multiprocessing.get_context("spawn")
        port = free_port(_IP)
        pipes = [context.Pipe() for _ in range(TRAINERS)]
        own, theirs = context.Pipe()
        self._pipes = [pipe for pipe, _ in pipes]
        self.processes = [
            context.Process(target=trainer, args=(rank, first, folder, port, pipe, theirs), daemon=True)
            for rank, (_, pipe) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        self._calls = own

    def told(self) -> list[Any]:
        """Waits for an answer of each."""
        return [pipe.recv() for pipe in self._pipes]

    def tell(self, *command: Any) -> None:
        """Has each do something."""
        for pipe in self._pipes:
            pipe.send(command)

    async def do(self, *command: Any) -> list[Any]:
        """Has each do something, and waits for it."""
        self.tell(*command)
        found = await asyncio.to_thread(self.told)
        if "failed" in found:
            raise RuntimeError(f"{command}: {found}")
        return found

    def serve(self, control: Control) -> None:
        """Forwards the calls of vLLM's sender to an engine, in a thread."""

        def forward() -> None:
            while True:
                name, arguments = self._calls.recv()
                try:
                    getattr(control, name)(*arguments)
                except Exception as error:
                    self._calls.send(str(error))
                else:
                    self._calls.send(None)

        threading.Thread(target=forward, daemon=True).start()

    def end(self) -> None:
        """Ends them."""
        for pipe in self._pipes:
            pipe.send(None)


def links(nbytes: int, first: int) -> list[float]:
    """Milliseconds that a copy of as many bytes takes, each trainer's part to an engine's GPU.

    On shared GPUs each engine's process has half of its own part there, as with columns of a tensor in one place.
    """
    import torch

    if first:
        pairs = [(first + rank, rank % ENGINES) for rank in range(TRAINERS)]
    else:
        pairs = [(one, other) for one in range(TRAINERS) for other in range(ENGINES)]
    block = 2 << 30
    memory = [
        (
            torch.empty(block, dtype=torch.uint8, device=f"cuda:{one}"),
            torch.empty(block, dtype=torch.uint8, device=f"cuda:{other}"),
        )
        for one, other in pairs
    ]
    times = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(4):
            for source, target in memory:
                target.copy_(source, non_blocking=True)
        for device in {device for pair in pairs for device in pair}:
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - start) * 1e3 * nbytes / len(pairs) / (4 * block))
    del memory
    torch.cuda.empty_cache()
    return times[1:]


def _peak(worker: Any, reset: bool) -> float:
    import torch

    if reset:
        torch.cuda.reset_peak_memory_stats()
        worker.before = torch.cuda.memory_allocated()
        return 0.0
    return float(torch.cuda.max_memory_allocated() - worker.before) / 1e9


def digests(worker: Any) -> dict[str, str]:
    """Runs in a worker: a digest of every byte of every parameter of its model, by name."""
    from worker.refit.weights import digest

    return digest.digests(worker.model_runner.get_model().named_parameters(), whole=True)


def engine_arguments(way: str) -> dict[str, Any]:
    """What an engine starts with."""
    common = {
        "load_format": "dummy",
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 1024,
        "gpu_memory_utilization": 0.5,
        "kv_cache_memory_bytes": 1 << 30,
        "tensor_parallel_size": ENGINES,
    }
    return common | {"EP": {"enable_expert_parallel": True}, "FP8": {"quantization": "fp8_per_block"}}.get(way[:3], {})


async def ours(way: str, folder: Path, trainers: Trainers, rounds: int, found: list[measure.Row]) -> None:
    """Our worker, by pieces and gathered."""
    from worker import VllmAsyncGenerationWorker
    from worker.refit.transport.channel import free_port

    is_shared = way.endswith("IPC")
    config = {
        "model": str(folder),
        "engine": {**engine_arguments(way), "vllm_kwargs": {"skip_tokenizer_init": True}},
        "refit": {"transport": "ipc_zmq" if is_shared else "collective"},
    }
    worker = VllmAsyncGenerationWorker(config)
    await worker.post_init_async()
    try:
        if is_shared:
            await trainers.do("open IPC", await worker.report_refit_addresses_async())
            update = worker.update_weights_via_ipc_zmq_async
        else:
            port, size = free_port(_IP), TRAINERS + ENGINES
            opening = asyncio.ensure_future(trainers.do("open", port, size))
            await worker.init_collective_async(0, _IP, port, size, TRAINERS)
            await opening
            update = worker.update_weights_from_collective_async
        llm = worker.engine.llm

        async def refit(how: str) -> tuple[float, Any]:
            start = time.perf_counter()
            trainers.tell(how)
            await update()
            took = (time.perf_counter() - start) * 1e3
            memory = await asyncio.to_thread(trainers.told)
            print(f"{way}, {how}: {took:.1f} ms; {worker.last_refit}; by pieces {worker.last_refit.by_pieces}", file=sys.stderr)
            return took, memory

        await refit("gathered")  # by the model's loaders, and recorded
        digested = await llm.collective_rpc(digests)
        await refit("gathered")  # compared with what the loaders would write
        for how, title in (("gathered", "gathered and broadcast"), ("pieces", "by pieces")):
            await llm.collective_rpc(_peak, args=(True,))
            times = [await refit(how) for _ in range(rounds + 1)]
            peak = await llm.collective_rpc(_peak, args=(False,))
            found.append(row(f"{way}{ENGINES}: {title}", [took for took, _ in times[1:]]))
            print(f"{way}: {title}: GB above the weights: trainer {times[-1][1]}, engine {peak}", file=sys.stderr)
            print(found[-1], flush=True)
        if not worker.last_refit.by_pieces:
            _problems.append(f"{way}: the last refits were not by pieces")
        await trainers.do("negate")
        await refit("pieces")
        other = await llm.collective_rpc(digests)
        await trainers.do("negate")
        await refit("pieces")
        again = await llm.collective_rpc(digests)
        same = sum(one[name] == two[name] for one, two in zip(digested, other, strict=True) for name in one)
        if again != digested:
            _problems.append(f"{way}: other bytes by pieces than gathered")
        print(f"{way}: same bytes {again == digested}; {same} tensors alike after negation", file=sys.stderr)
        await trainers.do("close")
    finally:
        await worker.shutdown()


async def native(folder: Path, trainers: Trainers, rounds: int, found: list[measure.Row]) -> None:
    """VLLM's own NCCL engine, packed, as the trainer's ranks gather and rank 0 broadcasts."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from worker.engine import vllm_adapter
    from worker.refit.transport.channel import free_port

    options = AsyncEngineArgs(
        model=str(folder), skip_tokenizer_init=True, weight_transfer_config={"backend": "nccl"}, **engine_arguments("TP")
    )
    llm = AsyncLLM.from_engine_args(options)
    try:
        trainers.serve(Control(llm))
        await trainers.do("open vLLM's", free_port(_IP), 1 + ENGINES)
        times = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            await llm.pause_generation(mode="keep", clear_cache=True)
            await trainers.do("vLLM's")
            await llm.resume_generation()
            times.append((time.perf_counter() - start) * 1e3)
            print(f"vLLM's own: {times[-1]:.1f} ms", file=sys.stderr)
        found.append(row("vLLM's own NCCL engine, packed", times[1:]))
        print(found[-1], flush=True)
    finally:
        vllm_adapter.stop_engine(llm)


async def everything(folder: Path, rounds: int) -> list[measure.Row]:
    """All measurements, each beside the links of this machine."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    print(f"{nbytes / 1e9:.1f} GB", file=sys.stderr)
    found: list[measure.Row] = []
    apart, shared = [way for way in WAYS if not way.endswith("IPC")], [way for way in WAYS if way.endswith("IPC")]
    for first, ways in ((ENGINES, apart), (0, shared)):
        if not ways:
            continue
        found.append(row("copy over the links" if first else "copy on shared GPUs", links(nbytes, first)))
        print(found[-1], flush=True)
        trainers = await asyncio.to_thread(Trainers, folder, first)
        try:
            await asyncio.to_thread(trainers.told)
            for way in ways:
                work: Coroutine[Any, Any, None]
                work = native(folder, trainers, 3, found) if way == "native" else ours(way, folder, trainers, rounds, found)
                try:
                    await work
                except Exception as error:  # the rest is worth having
                    traceback.print_exc()
                    _problems.append(f"{way}: {type(error).__name__}: {error}")
        finally:
            trainers.end()
    return found


def measured(rounds: int) -> Iterable[measure.Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(everything(measure.qwen3(Path(folder), "30B-A3B", layers=LAYERS), rounds))


if __name__ == "__main__":
    import torch

    if torch.cuda.device_count() < TRAINERS + ENGINES:
        print(f"benchmarks/sharded.py: needs {TRAINERS + ENGINES} GPUs; its last figures are in docs/results/performance.md")
        sys.exit(0)
    sys.exit(measure.main(__doc__, measured, rounds=5, notes=lambda: _problems))
