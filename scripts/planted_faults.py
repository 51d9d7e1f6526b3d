"""Plants faults in weight updates of real engines on a CPU, and runs healthy ones: when is each named, and in which words?

    python scripts/planted_faults.py                                    # both tables: some minutes
    python scripts/planted_faults.py --kinds dense --groups vllm --updates 3 --json

Each kind of model and group of ways has an engine in a process of its own. From the first update: the comparison knows of
nothing before. From the second: two healthy updates were compared before. A healthy row is so many updates in a row.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

#: By name a checkpoint of the kit, and the engine's dtype. ``plain`` keeps linear weights as they are loaded, as a GPU does.
KINDS = {
    "dense": ("qwen3", "bfloat16"),
    "half": ("qwen3", "float16"),
    "plain": ("qwen3", "bfloat16"),
    "tied": ("llama_tied", "float32"),
    "moe": ("qwen3_moe", "bfloat16"),
}
#: Ways by the engine that takes them: a bare ``load_weights``, ``reload_weights``, a transfer engine of vLLM; our worker.
GROUPS = {"vllm": ("raw", "reload", "transfer"), "ours": ("ipc_zmq", "collective")}
_VARIABLES = {
    "MODEL_QUIRKS": "rollout",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
_UPPER, _LOWER = "model.layers.1.", "model.layers.0."
_RESULT = "RESULT "

#: Tensors by their names in a checkpoint.
Items = dict[str, Any]
#: Makes what is sent of the states that the trainer had, the newest last.
Sending = Callable[[list[Items]], Items]


def _renamed(old: str, new: str) -> Sending:
    """Sends each of two kinds of tensors under the name of the other."""

    def fault(states: list[Items]) -> Items:
        swapped = {name: name.replace(old, "\0").replace(new, old).replace("\0", new) for name in states[-1]}
        return {swapped[name]: tensor for name, tensor in states[-1].items()}

    return fault


def _changed(word: str, change: Callable[[Any], Any]) -> Sending:
    return lambda states: {name: change(one).contiguous() if word in name else one for name, one in states[-1].items()}


def _without(word: str) -> Sending:
    return lambda states: {name: tensor for name, tensor in states[-1].items() if word not in name}


def _twice(states: list[Items]) -> Items:
    return {name: tensor + (tensor - states[-2][name]) for name, tensor in states[-1].items()}


def _half(states: list[Items]) -> Items:
    found = {name: tensor.clone() for name, tensor in states[-2].items()}
    for name, tensor in states[-1].items():
        found[name][: len(tensor) // 2] = tensor[: len(tensor) // 2]
    return found


FAULTS: dict[str, Sending] = {
    "layers swapped": _renamed(_UPPER, _LOWER),
    "a tensor of another layer": _renamed("0.self_attn.o_proj", "1.self_attn.o_proj"),
    "gate and up swapped": _renamed("gate_proj", "up_proj"),
    "k and v swapped": _renamed("k_proj", "v_proj"),
    "norms swapped": _renamed("input_layernorm", "post_attention_layernorm"),
    "transposed": _changed("q_proj", lambda tensor: tensor.T),
    "sign flipped": _changed("down_proj", lambda tensor: -tensor),
    "rounded": _changed("self_attn", lambda tensor: (tensor * 64).round() / 64),
    "half of the rows stale": _half,
    "applied twice": _twice,
    "stale by one": lambda states: states[-2],
    "stale by three": lambda states: states[-4],
    "one layer left out": _without(_UPPER),
    "the embedding left out": _without("embed_tokens"),
    "nothing sent": lambda _: {},
}


def _step(policy: Any, size: float = 1e-2, *, frozen: str = "\0") -> None:
    import torch

    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if frozen not in name:
                parameter.add_(torch.randn_like(parameter) * size)


class Healthy:
    """What a healthy trainer does between two updates; returns what it sends, and what the engine should have."""

    def __init__(self, policy: Any, items: Callable[[Any], Items]) -> None:
        self._policy, self._items = policy, items
        self._other, self._average = copy.deepcopy(policy), copy.deepcopy(policy)
        _step(self._other)

    def runs(self) -> dict[str, Callable[[int], tuple[Items, Any]]]:
        """Returns each kind of run by name; its function gets the number of the update."""
        return {
            "trained": lambda _: self._trained(),
            "steps below one unit in the last place": lambda _: self._trained(1e-7),
            "learning rate 0 at every second step": lambda number: self._trained(number % 2 * 1e-2),
            "sent again for an evaluation": lambda number: self._trained() if number % 3 else self._sent(self._policy),
            "two policies by turns": lambda number: self._sent((self._policy, self._other)[number % 2]),
            "moving average": lambda _: self._averaged(),
            "a frozen layer, sent": lambda _: self._trained(frozen=_LOWER),
            "a frozen layer, not sent": lambda number: self._unsent(_LOWER, number),
            "experts without gradient": lambda _: self._trained(frozen=".experts.0."),
        }

    def _sent(self, model: Any) -> tuple[Items, Any]:
        return self._items(model), model

    def _trained(self, size: float = 1e-2, *, frozen: str = "\0") -> tuple[Items, Any]:
        _step(self._policy, size, frozen=frozen)
        return self._sent(self._policy)

    def _averaged(self) -> tuple[Items, Any]:
        _step(self._policy)
        for mean, new in zip(self._average.parameters(), self._policy.parameters(), strict=True):
            mean.data.lerp_(new.data, 0.1)
        return self._sent(self._average)

    def _unsent(self, word: str, number: int) -> tuple[Items, Any]:
        sent, model = self._trained(frozen=word)
        return {name: tensor for name, tensor in sent.items() if word not in name or not number}, model


# ---- engines


class _Llm:
    """VLLM's own ``LLM`` under the hook, in this process."""

    def __init__(self, model: Path, dtype: str) -> None:
        from vllm import LLM
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

        sent = self._sent = Items()

        class Given(IPCWeightTransferEngine):  # type: ignore[misc]
            """VLLM's own engine, but tensors come from this process: the CPU platform has no IPC."""

            def parse_update_info(self, info: Any) -> Any:
                return info

            def receive_weights(self, info: Any) -> None:  # noqa: ARG002 - vLLM's name
                self.model.load_weights(list(sent.items()))

        WeightTransferEngineFactory.register_engine("given", Given)
        self._llm = LLM(
            str(model),
            dtype=dtype,
            max_model_len=128,
            max_num_seqs=4,
            enforce_eager=True,
            num_gpu_blocks_override=64,
            distributed_executor_backend="uni",
            weight_transfer_config={"backend": "given"},
        )

    async def send(self, way: str, items: Items) -> None:
        """Sends an update, and generates."""
        from vllm import SamplingParams
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        if way == "raw":
            self._llm.apply_model(lambda model: model.load_weights(list(items.items())) and None)
        elif way == "reload":
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(items.items())})
        else:
            self._sent.clear()
            self._sent.update(items)
            self._llm.start_weight_update()
            self._llm.update_weights(WeightTransferUpdateRequest(update_info={}))
            self._llm.finish_weight_update()
        self._llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=1), use_tqdm=False)

    async def entries(self) -> Any:
        """Returns what the engine runs on."""
        from worker.refit.running import look

        return look(self._llm)

    async def write(self) -> None:
        """Writes into the running model past its loaders."""

        def write(model: Any) -> None:
            model.model.norm.weight.data.add_(1)

        self._llm.apply_model(write)


class _Worker:
    """Our worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    async def send(self, way: str, items: Items) -> None:
        """Sends an update."""
        sender = self._worker.refitting.sender
        sender.section = sender.section.model_copy(update={"transport": way})
        await self._worker.refit_async(_module(items))

    async def entries(self) -> Any:
        """Returns what the engine runs on."""
        from quirks_core.ledger.account import Entry
        from worker.refit.engine import ledger

        return [Entry.model_validate(one) for one in await self._worker.engine.call(ledger.look)]


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


@asynccontextmanager
async def _engine(kind: str, group: str, model: Path) -> AsyncIterator[Any]:
    dtype = KINDS[kind][1]
    if kind == "plain":
        _keep_weights()
    if group == "vllm":
        yield _Llm(model, dtype)
        return
    from worker.lab.kit.lab import Lab

    lean = {"distributed_executor_backend": "uni", "num_gpu_blocks_override": 64, "load_format": "auto", "dtype": dtype}
    async with Lab(model.parent).worker(model, {"engine": lean, "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}}) as worker:
        yield _Worker(worker)


def _keep_weights() -> None:
    """Has the CPU platform keep linear weights as they are loaded."""
    import torch
    import vllm.model_executor.layers.utils  # noqa: F401 - it has the function

    def dispatch(layer: Any, remove_weight: bool) -> None:  # noqa: ARG001 - vLLM's name
        layer.cpu_linear = torch.nn.functional.linear

    for module in list(sys.modules.values()):
        if "dispatch_cpu_unquantized_gemm" in vars(module):
            module.dispatch_cpu_unquantized_gemm = dispatch  # type: ignore[attr-defined]


# ---- rows


async def _fault(
    engine: Any, way: str, policy: Any, items: Callable[[Any], Items], fault: str, update: int, layout: Any
) -> Any:
    """Plants one fault; returns its row."""
    from quirks_core.base.errors import QuirksError
    from worker.refit import Arrivals, digest

    arrivals, states = Arrivals(), []
    for number in range(4):
        _step(policy)
        states.append(items(policy))
        if number == 3:
            break
        await engine.send(way, states[-1])
        if update == 2:
            before = arrivals.compare(await engine.entries(), digest(policy, **layout))
            if before.status != "arrived":
                raise SystemExit(f"{way}, before {fault!r}: {before}")
    row = {"fault": fault, "way": way, "update": update}
    try:
        if fault == "written past the loaders":
            await engine.send(way, states[-1])
            arrivals.compare(await engine.entries(), digest(policy, **layout))
            await engine.write()
        else:
            await engine.send(way, FAULTS[fault](states))
    except QuirksError as error:
        return row | {"status": "refused", "words": str(error)}
    found = arrivals.compare(await engine.entries(), digest(policy, **layout))
    return row | {"status": found.status, "words": found.verdict or str(found)}


async def _healthy(engine: Any, way: str, name: str, run: Any, updates: int, layout: Any) -> Any:
    """Makes a healthy run; returns its row."""
    from worker.refit import Arrivals, digest

    arrivals, words = Arrivals(), []
    for number in range(updates):
        items, model = run(number)
        await engine.send(way, items)
        found = arrivals.compare(await engine.entries(), digest(model, **layout))
        if found.status != "arrived":
            words.append(f"update {number}: {found.verdict or found}")
    return {"healthy": name, "way": way, "updates": updates, "status": "named" if words else "arrived", "words": words[:1]}


async def _rows(kind: str, group: str, updates: int) -> AsyncIterator[Any]:
    """Yields all rows of one engine."""
    import torch
    from transformers import AutoModelForCausalLM

    from worker.lab.kit.checkpoints import build
    from worker.refit import tensors

    with tempfile.TemporaryDirectory() as folder:
        model = build(KINDS[kind][0], Path(folder) / "model")
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

        def items(model: Any) -> Items:
            return {name: tensor.clone() for name, tensor in tensors(model, "parameters")}

        layout = {"dtype": getattr(torch, KINDS[kind][1])}
        async with _engine(kind, group, model) as engine:
            planted = [*FAULTS, *(["written past the loaders"] if group == "vllm" else [])]
            for way in GROUPS[group]:
                for fault in planted:
                    for update in (1, 2):
                        yield await _fault(engine, way, policy, items, fault, update, layout)
                for name, run in Healthy(policy, items).runs().items():
                    if group == "vllm" or "not sent" not in name:  # our transports take whole models
                        yield await _healthy(engine, way, name, run, updates, layout)


# ---- the command


async def _child(kind: str, group: str, updates: int) -> None:
    async for row in _rows(kind, group, updates):
        print(_RESULT + json.dumps({"kind": kind, **row}), flush=True)


def _children(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for kind in options.kinds:
        for group in options.groups:
            command = [
                sys.executable,
                __file__,
                "--child",
                "--kinds",
                kind,
                "--groups",
                group,
                "--updates",
                str(options.updates),
            ]
            with tempfile.TemporaryFile("w+") as log:
                child = subprocess.Popen(  # noqa: S603 - this script
                    command, env={**os.environ, **_VARIABLES}, stdout=subprocess.PIPE, stderr=log, text=True
                )
                for line in child.stdout or ():
                    if line.startswith(_RESULT):
                        yield json.loads(line.removeprefix(_RESULT))
                if child.wait():
                    log.seek(0)
                    raise SystemExit(f"{kind}, {group}: {log.read()[-4000:]}")


def main() -> int:
    """Prints the tables; 1 if a fault is not named, or a healthy run is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--updates", type=int, default=30, help="of each healthy run")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(_child(options.kinds[0], options.groups[0], options.updates))
        return 0
    wrong = 0
    for row in _children(options):
        is_right = row["status"] == "arrived" if "healthy" in row else row["status"] in ("missing", "refused")
        wrong += not is_right
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        what = f"{row['updates']} updates" if "healthy" in row else f"from {row['update']}"
        name, words = (
            row.get("fault", row.get("healthy")),
            row["words"] if isinstance(row["words"], str) else "".join(row["words"]),
        )
        print(
            f"{'' if is_right else '!'}{row['kind']:<6} {row['way']:<10} {name:<40} {what:<11} {row['status']:<9} {words}",
            flush=True,
        )
    print(f"{wrong} rows are wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
