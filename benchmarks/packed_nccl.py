"""Does vLLM's packed NCCL transfer damage weights? A stress of its consumer inside a layerwise reload, between two GPUs.

    python benchmarks/packed_nccl.py                          the installed release's consumer
    python benchmarks/packed_nccl.py --packed FILE ...        that of another release, too: its ``packed_tensor.py``
    python benchmarks/packed_nccl.py --rounds 20 --json

Until 0.32 the consumer gives each buffer a stream of its own and orders none of them (NVIDIA-NeMo/RL#3545,
vllm-project/vllm#52951). A layer that spans two packs is loaded on the stream of the second one, which neither waits for the
first pack to arrive nor keeps its memory from being used again. Here a trainer's process sends an 8B shape from the second GPU
again and again, each time scaled by another power of two, and every parameter of the engine is compared bit by bit with a load
without packs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import measure

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model lies in this process, where it can be compared

#: Bytes of a pack, and buffers: the first are vLLM's own; in smaller packs more layers span two.
GEOMETRIES = ((1 << 30, 2), (1 << 26, 2), (1 << 24, 2), (1 << 26, 1))
#: Updates differ by a power of two, so a tensor that comes late is another number, and none is rounded.
POWERS = 4


@dataclass(frozen=True, slots=True)
class Damage:
    """What one consumer did.

    Attributes:
        consumer: The release's name, or the file.
        pack_bytes: Bytes of a pack.
        buffers: Packs in flight.
        updates: How many were made.
        damaged: How many of them left a parameter that differs.
        parameters: The largest number of parameters that differ after one update.
    """

    consumer: str
    pack_bytes: int
    buffers: int
    updates: int
    damaged: int
    parameters: int


def weights(folder: Path, device: str) -> dict[str, Any]:
    """The checkpoint's tensors by name, with random values."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    return {name: tensor.detach() for name, tensor in model.named_parameters()}


def group_of(rank: int, port: int, device: str) -> Any:
    """The NCCL group of both processes."""
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.utils import StatelessProcessGroup

    return PyNcclCommunicator(StatelessProcessGroup.create("127.0.0.1", port, rank, 2), device=device)


def trainer(folder: Path, port: int, orders: Any, described: Any) -> None:
    """Sends all weights for each order: the power of two, bytes of a pack (0: without packs) and buffers."""
    import torch
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

    torch.cuda.set_device(1)
    tensors = weights(folder, "cuda:1")
    described.put([(name, list(tensor.shape)) for name, tensor in tensors.items()])
    group = group_of(0, port, "cuda:1")
    while (order := orders.get()) is not None:
        power, pack_bytes, buffers = order
        scaled = ((name, tensor * 2.0**power) for name, tensor in tensors.items())
        if pack_bytes:
            packed_nccl_broadcast_producer(scaled, group, 0, lambda item: item[1], pack_bytes, buffers)
        else:
            for _, tensor in scaled:
                group.broadcast(tensor, src=0)
                torch.cuda.synchronize()


class Receiver:
    """An engine's model, updated as vLLM's NCCL engine does it."""

    def __init__(self, folder: Path, port: int, orders: Any, described: Any) -> None:
        from vllm import LLM

        self.llm = LLM(
            str(folder),
            load_format="dummy",
            enforce_eager=True,
            skip_tokenizer_init=True,
            max_model_len=256,
            gpu_memory_utilization=0.35,
        )
        self._orders = orders
        self._described = described.get()
        self._group = group_of(1, port, "cuda:0")
        self.update(0, 0, 0, None)
        self._expected: dict[str, Any] = self._on_model(lambda model: {name: p.clone() for name, p in model.named_parameters()})

    def update(self, power: int, pack_bytes: int, buffers: int, consumer: Callable[..., None] | None) -> None:
        """Makes one update; without a consumer, tensor by tensor."""
        self._orders.put((power, pack_bytes, buffers))
        self._on_model(partial(self._load, pack_bytes, buffers, consumer))

    def differing(self, power: int) -> int:
        """Parameters that are not what was sent."""
        import torch

        return self._on_model(
            lambda model: sum(not torch.equal(p, self._expected[name] * 2.0**power) for name, p in model.named_parameters())
        )

    def _on_model(self, call: Callable[[Any], Any]) -> Any:
        return self.llm.apply_model(call)[0]

    def _load(self, pack_bytes: int, buffers: int, consumer: Callable[..., None] | None, model: Any) -> None:
        import torch
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        initialize_layerwise_reload(model)
        if consumer is not None:
            consumer(self._metadata(), self._group, 0, model.load_weights, pack_bytes, buffers)
        else:
            for name, (shape, dtype) in self._metadata():
                tensor = torch.empty(shape, dtype=dtype, device="cuda:0")
                self._group.broadcast(tensor, src=0)
                torch.cuda.synchronize()
                model.load_weights([(name, tensor)])
        finalize_layerwise_reload(model, self.llm.llm_engine.vllm_config.model_config)
        torch.cuda.synchronize()

    def _metadata(self) -> Iterator[tuple[str, tuple[list[int], Any]]]:
        import torch

        return ((name, (shape, torch.bfloat16)) for name, shape in self._described)


def consumer_of(file: Path | None) -> tuple[str, Callable[..., None]]:
    """The consumer of the installed release, or of a file."""
    import vllm
    from vllm.distributed.weight_transfer import packed_tensor

    if file is None:
        return vllm.__version__, packed_tensor.packed_nccl_broadcast_consumer
    return file.stem, runpy.run_path(str(file), run_name=file.stem)["packed_nccl_broadcast_consumer"]


def damages(receiver: Receiver, files: list[Path | None], rounds: int) -> Iterator[Damage]:
    """Every consumer with every geometry."""
    for name, consumer in map(consumer_of, files):
        for pack_bytes, buffers in GEOMETRIES:
            found = []
            for number in range(rounds):
                power = number % POWERS + 1
                receiver.update(power, pack_bytes, buffers, consumer)
                found.append(receiver.differing(power))
            yield Damage(name, pack_bytes, buffers, rounds, sum(map(bool, found)), max(found))


def main() -> int:
    """Measures and prints; damage by the installed release makes the exit code 1."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", type=Path, nargs="*", default=[], help="packed_tensor.py of other releases")
    parser.add_argument("--rounds", type=int, default=20, help="updates of each kind (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("benchmarks/packed_nccl.py: needs two GPUs; its last figures are in docs/results/gpu.md")
        return 0
    from worker.refit.transport.channel import free_port

    context = multiprocessing.get_context("spawn")
    orders, described = context.Queue(), context.Queue()
    with tempfile.TemporaryDirectory() as name:
        folder, port = measure.qwen3(Path(name), "8B"), free_port("127.0.0.1")
        sender = context.Process(target=trainer, args=(folder, port, orders, described), daemon=True)
        sender.start()
        receiver = Receiver(folder, port, orders, described)
        hurt = 0
        for damage in damages(receiver, [*options.packed, None], options.rounds):
            hurt = damage.damaged
            text = (
                f"{damage.consumer}: packs of {damage.pack_bytes >> 20} MiB, {damage.buffers} buffers: "
                f"{damage.damaged} of {damage.updates} updates damaged, at most {damage.parameters} parameters"
            )
            print(json.dumps(asdict(damage)) if options.json else text, flush=True)
        orders.put(None)
        sender.join(60)
    return 1 if hurt else 0


if __name__ == "__main__":
    sys.exit(main())
