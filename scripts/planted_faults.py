"""Plants faults in weight updates of real engines, and runs healthy ones: when is each named, and in which words?

    python scripts/planted_faults.py                                    # all tables on a CPU: some minutes
    python scripts/planted_faults.py --kinds dense --groups vllm --updates 3 --json
    python scripts/planted_faults.py --device cuda --jobs 12 --seconds 280 --output rows.jsonl

Each kind of model and group of ways has an engine in a process of its own, under ``MODEL_QUIRKS_LEDGER=stop``. From the first
update: the comparison knows of nothing before. From the second: two healthy updates were compared before. A healthy row is so
many updates in a row: all have to arrive, and the engine may refuse no request. On a GPU the engines run as vLLM starts them
by itself: compiled, with CUDA graphs, in processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from planted_engines import GROUPS, KINDS, build, started
from planted_updates import ADAPTERS, FAULTS, OF_ONE_RANK, Healthy, Items, Sending, step, write_adapter

_VARIABLES = {
    "MODEL_QUIRKS": "rollout",
    "MODEL_QUIRKS_LEDGER": "stop",
    "MODEL_QUIRKS_DISABLE": "lora-unmatched-names",  # it refuses an adapter before the ledger sees it
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # vLLM's IPC engine sends pickles, and this script a function
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
_ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
}
_RESULT, _STARTED = "RESULT ", "STARTED "
_PAST = "written past the loaders"
#: Updates of the base model, at most, until an engine that takes adapters and gets none is named.
_PATIENCE = 20


class Table:
    """Makes the rows of one engine.

    Args:
        engine: The engine.
        policy: The trainer's model.
        layout: What else `worker.refit.digest` takes.
        updates: How many a healthy run has.
    """

    def __init__(self, engine: Any, policy: Any, layout: dict[str, Any], updates: int) -> None:
        self._engine, self._policy, self._layout, self._updates = engine, policy, layout, updates

    async def rows(self, group: str, way: str, folder: Path) -> AsyncIterator[dict[str, Any]]:
        """Yields the rows of one way."""
        if group == "adapters":
            async for row in self._of_adapters(folder):
                yield row
            return
        for name, run in Healthy(self._policy, self._items, self._updates).runs().items():
            if group != "ours" or "not sent" not in name:  # our transports take whole models
                yield await self._healthy(way, name, run)
        faults: dict[str, Sending | None] = dict(FAULTS)
        faults |= OF_ONE_RANK if group == "ranks" else {}
        faults |= {_PAST: None} if group != "ours" else {}
        for name, fault in faults.items():
            for update in (1, 2):
                yield await self._fault(way, name, fault, update)

    def _items(self, model: Any) -> Items:
        from worker.refit import tensors

        return {name: tensor.clone() for name, tensor in tensors(model, "parameters")}

    async def _compared(self, arrivals: Any, model: Any) -> Any:
        from worker.refit import digest

        return arrivals.compare(await self._engine.entries(), digest(model, **self._layout))

    async def _fault(self, way: str, name: str, fault: Sending | None, update: int) -> dict[str, Any]:
        """Plants one fault; returns its row."""
        from quirks_core.base.errors import QuirksError
        from worker.refit import Arrivals

        arrivals, states, refusal = Arrivals(), [], ""
        row: dict[str, Any] = {"fault": name, "way": way, "update": update}
        for number in range(4):
            step(self._policy)
            states.append(self._items(self._policy))
            if number == 3:
                break
            refusal = await self._engine.send(way, states[-1])
            if update == 2 and (before := await self._compared(arrivals, self._policy)).status != "arrived":
                return row | {"status": "wrong before", "words": before.verdict or str(before)}
        if refusal:
            return row | {"status": "wrong before", "words": refusal}
        try:
            if fault is None:
                await self._engine.send(way, states[-1])
                await self._compared(arrivals, self._policy)
                await self._engine.write()
            elif name in OF_ONE_RANK:
                refusal = await self._engine.send(way, states[-1], fault(states))
            else:
                refusal = await self._engine.send(way, fault(states))
        except QuirksError as error:
            return row | {"status": "refused", "words": str(error)}
        except Exception as error:  # of vLLM: the rows after this one are worth having
            return row | {"status": "error", "words": f"{type(error).__name__}: {error}"}
        found = await self._compared(arrivals, self._policy)
        if fault is None:
            refusal = await self._engine.send(way, states[-1])  # the ledger looks when an update comes
        return row | {"status": found.status, "words": found.verdict or str(found), "ledger": refusal}

    async def _healthy(self, way: str, name: str, run: Callable[[int], tuple[Items, Any]]) -> dict[str, Any]:
        """Makes a healthy run; returns its row."""
        from worker.refit import Arrivals

        arrivals, words = Arrivals(), []
        for number in range(self._updates):
            items, model = run(number)
            refusal = await self._engine.send(way, items)
            found = await self._compared(arrivals, model)
            if refusal or found.status != "arrived":
                words.append(f"update {number}: {refusal or found.verdict or found}")
        status = "named" if words else "arrived"
        return {"healthy": name, "way": way, "update": self._updates, "status": status, "words": "".join(words[:1])}

    async def _of_adapters(self, folder: Path) -> AsyncIterator[dict[str, Any]]:
        """Yields the rows of adapters that are sent as adapters; the ledger alone judges them."""
        base = self._items(self._policy)
        yield await _of_adapter("never sent, the base in its place", 1, _PATIENCE, lambda: self._engine.send("raw", base))
        sent = 0

        async def send(fault: str = "") -> str:
            nonlocal sent
            sent += 1
            written = write_adapter(folder / f"adapter-{sent}", sent, fault)
            return str(await self._engine.send_adapter(sent, written, is_used="no request" not in fault))

        refusals = [found for _ in range(self._updates) if (found := await send())]
        status = "named" if refusals else "arrived"
        row = {"healthy": "adapters", "way": "add_lora", "update": self._updates, "status": status}
        yield row | {"words": "".join(refusals[:1])}
        for fault, count in ADAPTERS.items():
            await send()
            await send()
            yield await _of_adapter(fault, 2, count, partial(send, fault))


async def _of_adapter(fault: str, update: int, most: int, send: Callable[[], Awaitable[str]]) -> dict[str, Any]:
    """Sends until the engine refuses; returns the row, with the number of that update."""
    row = {"fault": fault, "way": "add_lora", "update": update}
    for number in range(1, most + 1):
        if words := await send():
            return row | {"status": "missing", "words": words, "after": number}
    return row | {"status": "arrived", "words": f"not named in {most} updates"}


# ---- a process for each engine


def _ways(kind: str, group: str, options: argparse.Namespace) -> list[str]:
    """Returns the ways of a group that the device and the kind have: what vLLM has quantised takes no bare load."""
    absent = {"cpu": {"ipc", "nccl"}, "cuda": {"transfer"}}[options.device]
    absent |= {"raw"} if "quantization" in KINDS[kind].arguments else set()
    if options.device == "cuda" and _gpus() < 2:
        absent |= {"nccl", "collective", *(GROUPS["ranks"] if group == "ranks" else ())}
    return [way for way in GROUPS[group] if way not in absent and (options.ways is None or way in options.ways)]


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


async def _child(kind: str, group: str, options: argparse.Namespace) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build(KINDS[kind], folder / "model")
        # A trainer of its own GPU, where there is one, for the ways that need it.
        device = options.device if group not in ("nccl", "ours") or _gpus() < 2 else "cuda:1"
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device)
        async with started(kind, group, model, options.device) as engine:
            print(f"{_STARTED}{kind}, {group}: started in {time.monotonic() - begun:.0f} s", flush=True)
            layout = {"dtype": getattr(torch, KINDS[kind].dtype), "tensor_parallel_size": engine.ranks}
            table = Table(engine, policy, layout, options.updates)
            for way in _ways(kind, group, options):
                async for row in table.rows(group, way, folder):
                    print(_RESULT + json.dumps({"kind": kind, **row}), flush=True)


def _run(cell: tuple[str, str], number: int, options: argparse.Namespace, rows: queue.Queue[Any]) -> None:
    """Runs one engine's process to its end, and hands its rows on."""
    kind, group = cell
    command = [sys.executable, __file__, "--child", "--kinds", kind, "--groups", group, "--updates", str(options.updates)]
    command += ["--device", options.device, *(["--ways", *options.ways] if options.ways else [])]
    variables = {**os.environ, **_VARIABLES}
    # Several engines that start at once would take the same free port.
    variables |= _ON_CPU if options.device == "cpu" else {"VLLM_PORT": str(20000 + 200 * number)}
    if group == "ranks":
        variables.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(  # noqa: S603 - this script
            command, env=variables, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        ending = threading.Timer(max(1.0, options.end - time.monotonic()), _end, [child])
        ending.start()
        for line in child.stdout or ():
            if line.startswith(_RESULT):
                rows.put(json.loads(line.removeprefix(_RESULT)))
            elif line.startswith(_STARTED):
                print(line.removeprefix(_STARTED), end="", file=sys.stderr, flush=True)
        code = child.wait()
        ending.cancel()
        _end(child)  # what it started
        if code:
            log.seek(0)
            rows.put({"kind": kind, "group": group, "failed": f"exit code {code}", "words": log.read()[-3000:]})


def _end(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _children(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the rows of all engines as they come."""
    kinds = [kind for kind in options.kinds if options.device in KINDS[kind].devices]
    alone = ("adapters", "ranks", "nccl")  # of these one kind is enough
    cells = [(kind, group) for kind in kinds for group in options.groups if group not in alone or kind == "dense"]
    waiting = list(enumerate(cell for cell in cells if _ways(*cell, options)))
    rows: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        while waiting and time.monotonic() < options.end:
            number, cell = waiting.pop(0)
            _run(cell, number, options, rows)
        rows.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for _ in threads:
        while (row := rows.get()) is not None:
            yield row
    for _, (kind, group) in waiting:
        yield {"kind": kind, "group": group, "failed": "not started: no time was left", "words": ""}


def _is_right(row: dict[str, Any]) -> bool:
    if "failed" in row:
        return False
    return row["status"] == "arrived" if "healthy" in row else row["status"] in ("missing", "refused")


def _line(row: dict[str, Any]) -> str:
    mark = "" if _is_right(row) else "! "
    if "failed" in row:
        return f"{mark}{row['kind']}, {row['group']}: {row['failed']}: {row['words']}"
    if "healthy" in row:
        name, when = row["healthy"], f"{row['update']} updates"
    else:
        name, when = row["fault"], f"from {row['update']}, after {row.get('after', 1)}"
    ledger = f" | ledger: {row['ledger']}" if row.get("ledger") else ""
    return f"{mark}{row['kind']:<13} {row['way']:<10} {name:<42} {when:<15} {row['status']:<9} {row['words']}{ledger}"


def main() -> int:
    """Prints the tables; 1 if a fault is not named, a healthy run is, or an engine failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--ways", nargs="+", choices=sum(GROUPS.values(), ()), help="of those groups; all if left out")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--updates", type=int, default=30, help="of each healthy run")
    parser.add_argument("--jobs", type=int, default=1, help="engines at a time")
    parser.add_argument("--seconds", type=float, default=1e6, help="after which engines are ended; their rows are kept")
    parser.add_argument("--output", type=Path, help="gets a line of JSON for each row as it comes")
    parser.add_argument("--json", action="store_true", help="prints those lines")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(_child(options.kinds[0], options.groups[0], options))
        return 0
    options.end = time.monotonic() + options.seconds
    counts: Counter[str] = Counter()
    for row in _children(options):
        kind = "engines that failed" if "failed" in row else "healthy runs" if "healthy" in row else "faults"
        counts[kind] += 1
        counts[f"{kind}, right"] += _is_right(row)
        print(json.dumps(row) if options.json else _line(row), flush=True)
        if options.output is not None:
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    print(
        f"{counts['faults, right']} of {counts['faults']} faults are named, {counts['healthy runs, right']} of "
        f"{counts['healthy runs']} healthy runs arrived without a refusal, {counts['engines that failed']} engines failed",
        file=sys.stderr,
    )
    is_right = all(counts[f"{kind}, right"] == counts[kind] for kind in ("faults", "healthy runs", "engines that failed"))
    return 0 if is_right and counts["faults"] else 1


if __name__ == "__main__":
    sys.exit(main())
