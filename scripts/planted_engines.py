"""The engines of ``scripts/planted_faults.py``: vLLM's own under the hook, and our worker, each by every way that it takes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planted_updates import Items

#: Ways by the engine that takes them. ``raw`` is a bare ``load_weights``, ``transfer`` a transfer engine of vLLM's without a
#: wire, ``ipc`` and ``nccl`` those with one, which are for GPUs; the last two of ours.
GROUPS = {
    "vllm": ("raw", "reload", "transfer", "ipc"),
    "nccl": ("nccl",),
    "ranks": ("raw", "reload"),
    "adapters": ("add_lora",),
    "ours": ("ipc_zmq", "collective"),
}
_PROMPT = {"prompt_token_ids": [5, 6, 7]}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model, and of engine for it.

    Attributes:
        checkpoint: Its name in the kit.
        dtype: The engine's.
        arguments: Further arguments of the engine.
        devices: Where it runs.
        is_wide: Layers as wide as blocks of FP8 are.
    """

    checkpoint: str
    dtype: str
    arguments: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu", "cuda")
    is_wide: bool = False


#: ``plain`` keeps linear weights as they are loaded, as a GPU does. vLLM's CPU build has no kernel for FP8 without AMX tiles.
KINDS = {
    "dense": Kind("qwen3", "bfloat16"),
    "half": Kind("qwen3", "float16"),
    "plain": Kind("qwen3", "bfloat16", devices=("cpu",)),
    "tied": Kind("llama_tied", "float32", devices=("cpu",)),
    "tied16": Kind("llama_tied", "bfloat16", devices=("cuda",)),
    "moe": Kind("qwen3_moe", "bfloat16"),
    "fp8": Kind("qwen3", "bfloat16", {"quantization": "fp8_per_tensor"}, ("cuda",), is_wide=True),
    "fp8_per_block": Kind("qwen3", "bfloat16", {"quantization": "fp8_per_block"}, ("cuda",), is_wide=True),
}


def build(kind: Kind, folder: Path) -> Path:
    """Writes a checkpoint of a kind."""
    from worker.lab.kit import checkpoints

    checkpoints.build(kind.checkpoint, folder)
    if kind.is_wide:
        from transformers import AutoModelForCausalLM

        config = checkpoints.configuration(kind.checkpoint)
        config.hidden_size, config.intermediate_size, config.head_dim = 256, 512, 64
        config.num_attention_heads, config.num_key_value_heads = 4, 2
        model = AutoModelForCausalLM.from_config(config)
        checkpoints.randomise(model, 0)
        model.save_pretrained(folder)
    return folder


def take(worker: Any, way: str, files: Sequence[str]) -> None:
    """Runs in each worker of vLLM: takes the update in its rank's file."""
    import torch

    items = torch.load(files[worker.rank % len(files)], map_location=worker.device)
    if way == "raw":
        worker.model_runner.get_model().load_weights(list(items.items()))
    else:
        worker.reload_weights(weights_iterator=iter(items.items()))


def spoil(worker: Any) -> None:
    """Runs in each worker: writes into the running model past its loaders."""
    worker.model_runner.get_model().model.norm.weight.data.add_(1)


class Llm:
    """VLLM's own ``LLM`` under the hook.

    Attributes:
        ranks: Over how many processes it splits its layers.
    """

    def __init__(self, kind: Kind, group: str, model: Path, device: str) -> None:
        from vllm import LLM

        self._folder, self._sent = model.parent, Items()
        self.ranks = 2 if group == "ranks" else 1
        arguments = dict(_SMALL[device])
        if group == "adapters":
            arguments |= {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
        elif group == "nccl":
            arguments["weight_transfer_config"] = {"backend": "nccl"}
        elif device == "cuda":
            arguments["weight_transfer_config"] = {"backend": "ipc"}
        elif group == "vllm":
            self._register()
            arguments |= {"weight_transfer_config": {"backend": "given"}, "distributed_executor_backend": "uni"}
        self._llm = LLM(str(model), dtype=kind.dtype, tensor_parallel_size=self.ranks, **arguments, **kind.arguments)
        self._trainer: Any = None

    def _register(self) -> None:
        """Registers vLLM's own engine for IPC, but tensors come from this process: the CPU platform has no IPC."""
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

        sent = self._sent

        class Given(IPCWeightTransferEngine):  # type: ignore[misc]
            """Without a wire."""

            def parse_update_info(self, info: Any) -> Any:
                return info

            def receive_weights(self, info: Any) -> None:  # noqa: ARG002 - vLLM's name
                self.model.load_weights(list(sent.items()))

        WeightTransferEngineFactory.register_engine("given", Given)

    async def send(self, way: str, items: Items, last: Items | None = None) -> str:
        """Sends an update, and generates.

        Args:
            way: How.
            items: The update.
            last: What the last rank gets in its place.

        Returns:
            Why the engine refuses to generate, under ``MODEL_QUIRKS_LEDGER=stop``; empty if it does not.
        """
        if way == "transfer":
            self._sent.clear()
            self._sent.update(items)
            self.start_weight_update()
            self.update_weights({})
            self.finish_weight_update()
        elif way in ("ipc", "nccl"):
            self._send_by_wire(way, items)
        else:
            import torch

            files = []
            for number, part in enumerate([items] * (self.ranks - 1) + [items if last is None else last]):
                files.append(str(self._folder / f"update-{number}"))
                torch.save({name: tensor.cpu() for name, tensor in part.items()}, files[-1])
            self._llm.collective_rpc(take, args=(way, files))
        return self.generate()

    async def send_adapter(self, number: int, folder: Path, *, is_used: bool) -> str:
        """Loads an adapter, and generates, with it or without; returns as `send` does."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(f"policy-{number}", number, str(folder))
        self._llm.llm_engine.add_lora(request)
        return self.generate(request if is_used else None)

    def generate(self, adapter: Any = None) -> str:
        """Generates a token; returns as `send` does."""
        from vllm import SamplingParams

        if not (refusal := self.account().refusal):
            self._llm.generate([_PROMPT], SamplingParams(max_tokens=1), use_tqdm=False, lora_request=adapter)
            refusal = self.account().refusal  # some updates end with the request after them
        return str(refusal)

    def account(self) -> Any:
        """Returns the ledger's account."""
        from quirks_core.hook import worker_calls
        from quirks_core.ledger.account import Account

        (answer,) = self._llm.collective_rpc(worker_calls.METHOD, args=("worker.refit.engine.ledger:account", [], {}))
        return Account.model_validate(answer["value"])

    async def entries(self) -> Any:
        """Returns what the engine runs on."""
        from worker.refit.running import look

        return look(self._llm)

    async def write(self) -> None:
        """Writes into the running model past its loaders."""
        self._llm.collective_rpc(spoil)

    # ---- the calls by which a trainer engine of vLLM's drives this one

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Has the worker meet the trainer."""
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begins an update."""
        self._llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        """Has the worker receive weights."""
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, *_: Any) -> None:
        """Ends an update."""
        self._llm.finish_weight_update()

    def _send_by_wire(self, way: str, items: Items) -> None:
        """Sends by a trainer engine of vLLM's (0.28 and later)."""
        import torch

        first = next(iter(items.values()), None)  # none, if nothing is sent
        with torch.cuda.device(first.device if first is not None and first.is_cuda else None):  # the trainer's end of NCCL
            self._send_from_here(way, _source(items))

    def _send_from_here(self, way: str, source: Any) -> None:
        from vllm.distributed.weight_transfer import ipc_engine, nccl_engine

        if self._trainer is None and way == "ipc":
            kind, info = ipc_engine.IPCTrainerWeightTransferEngine, ipc_engine.IPCTrainerInitInfo(rank=0)
            self._trainer = kind.trainer_init(info, client=self, source=source)
        elif self._trainer is None:
            from worker.refit.transport.channel import free_port

            meeting = {"master_address": "127.0.0.1", "master_port": free_port("127.0.0.1"), "world_size": 2}
            kind, info = nccl_engine.NCCLTrainerWeightTransferEngine, nccl_engine.NCCLTrainerInitInfo(**meeting, rank=0)
            self._trainer = kind.trainer_init(info, client=self, source=source)
        self._trainer.source = source
        self._trainer.send_weights()


def _source(items: Items) -> Any:
    """Returns tensors as what vLLM's trainer engines read on every release: the parameters of a module."""
    import torch
    from vllm.distributed.weight_transfer.base import ModuleSource

    module = torch.nn.Module()
    module.named_parameters = lambda *_, **__: iter(items.items())
    return ModuleSource(module)


class Worker:
    """Our worker."""

    ranks = 1

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    async def send(self, way: str, items: Items, last: Items | None = None) -> str:  # noqa: ARG002 - all ranks get the same
        """Sends an update, and generates; returns as `Llm.send` does."""
        from worker.batch import padded

        sender = self._worker.refitting.sender
        sender.section = sender.section.model_copy(update={"transport": way})
        await self._worker.refit_async(_module(items))
        (answer,) = await self._worker.engine.call(_ledger().account)
        if not (refusal := str(answer["refusal"])):
            async for _ in self._worker.generate_async(padded([_PROMPT["prompt_token_ids"]]), greedy=True):
                pass
        return refusal

    async def entries(self) -> Any:
        """Returns what the engine runs on."""
        from quirks_core.ledger.account import Entry

        return [Entry.model_validate(one) for one in await self._worker.engine.call(_ledger().look)]


def _ledger() -> Any:
    from worker.refit.engine import ledger

    return ledger


def _module(items: Items) -> Any:
    """Returns tensors as the parameters of a module."""
    import torch

    root = torch.nn.Module()
    for name, tensor in items.items():
        *path, last = name.split(".")
        place = root
        for word in path:
            if not hasattr(place, word):
                place.add_module(word, torch.nn.Module())
            place = getattr(place, word)
        place.register_parameter(last, torch.nn.Parameter(tensor.clone(), requires_grad=False))
    return root


#: Arguments of a small engine; on a GPU what vLLM takes by itself (CUDA graphs, compiled), in a small part of the memory.
_SMALL: dict[str, dict[str, Any]] = {
    "cpu": {"max_model_len": 128, "max_num_seqs": 4, "enforce_eager": True, "num_gpu_blocks_override": 64},
    "cuda": {"max_model_len": 128, "max_num_seqs": 4, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 256 << 20},
}


@asynccontextmanager
async def started(kind: str, group: str, model: Path, device: str) -> AsyncIterator[Any]:
    """Starts the engine of a group for a kind of model."""
    if kind == "plain":
        _keep_weights()
    if group != "ours":
        yield Llm(KINDS[kind], group, model, device)
        return
    from worker import VllmAsyncGenerationWorker

    options = {**_SMALL[device], "load_format": "auto", "dtype": KINDS[kind].dtype, **KINDS[kind].arguments}
    values: dict[str, Any] = {"model": str(model), "sampling": {"max_new_tokens": 1, "ignore_eos": True}}
    if device == "cpu":
        options["distributed_executor_backend"] = "uni"
        values["env"] = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    worker = VllmAsyncGenerationWorker({**values, "engine": options})
    try:
        await worker.post_init_async()
        yield Worker(worker)
    finally:
        await worker.shutdown()


def _keep_weights() -> None:
    """Has the CPU platform keep linear weights as they are loaded."""
    import torch
    import vllm.model_executor.layers.utils  # noqa: F401 - it has the function

    def dispatch(layer: Any, remove_weight: bool) -> None:  # noqa: ARG001 - vLLM's name
        layer.cpu_linear = torch.nn.functional.linear

    for module in list(sys.modules.values()):
        if "dispatch_cpu_unquantized_gemm" in vars(module):
            module.dispatch_cpu_unquantized_gemm = dispatch  # type: ignore[attr-defined]
