"""Looks at plugins in processes of their own, where nothing that they do can reach ours.

A plugin may end the process, hang, write to standard output or import half a gigabyte: here that is a line in a report.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from quirks_core import guard
from quirks_core.context import Record
from quirks_core.declaration import digest
from quirks_core.discovery import PROJECT, Discovered
from quirks_core.errors import QuirksError, words
from quirks_core.loaded import Loaded
from quirks_core.plan import sha256
from quirks_core.registry import Registry
from quirks_core.resolve import resolve
from quirks_core.validate import Problem, problems

#: Packages that matching must do without.
HEAVY = frozenset({"ray", "torch", "transformers", "vllm"})
#: Seconds that a process may take besides what the time limit allows each plugin.
_GRACE_S = 30.0


class SeenQuirk(Record):
    """One quirk, as a process saw it that does nothing else.

    Attributes:
        id: Its id.
        location: File and line.
        supersedes: Ids of the quirks that it replaces.
        digest: SHA-256 of the declaration; empty if it cannot be told.
        plans: SHA-256 of the plan for each of its examples.
        problems: What it does not keep to.
    """

    id: str
    location: str
    supersedes: tuple[str, ...]
    digest: str
    plans: tuple[str, ...]
    problems: tuple[Problem, ...]


class Seen(Record):
    """One plugin, as a process saw it that did nothing else.

    Attributes:
        error: Why it does not load; empty if it does.
        heavy: The packages of `HEAVY` that importing it and judging its examples imported.
        environment: The environment variables that importing it and judging its examples set or removed.
        quirks: What it declares.
    """

    error: str = ""
    heavy: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    quirks: tuple[SeenQuirk, ...] = ()


def look(plugins: Sequence[Discovered], *, hash_seed: str | None = None) -> list[Seen]:
    """Loads plugins in a process of their own and holds what they declare against every law.

    Args:
        plugins: What to load. A process that one of them spoils is replaced for the next.
        hash_seed: The processes' PYTHONHASHSEED; that of this process if None.

    Returns:
        What was seen, one per plugin.
    """
    seen: list[Seen] = []
    while left := plugins[len(seen) :]:
        found, end = _run(left, hash_seed)
        seen += found or [Seen(error=end)]
    return seen


def _run(plugins: Sequence[Discovered], hash_seed: str | None) -> tuple[list[Seen], str]:
    """Starts one process; returns what it got to see, and how it ended in words."""
    rows = [(item.name, item.distribution, item.version, item.entry_point.value, item.problem) for item in plugins]
    environ = {**os.environ, **({"PYTHONHASHSEED": hash_seed} if hash_seed else {})}
    limit_s = guard.time_limit_s() * len(plugins) + _GRACE_S
    with tempfile.TemporaryDirectory(prefix="quirks-fresh-") as folder:
        orders, result = Path(folder, "orders.json"), Path(folder, "result.jsonl")
        orders.write_text(json.dumps({"path": sys.path, "plugins": rows}), encoding="utf-8")
        result.touch()
        try:
            done = subprocess.run(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "quirks_core.fresh", str(orders), str(result)],
                env=environ, timeout=limit_s, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            )  # fmt: skip
            end = _end(done.returncode, done.stderr.decode(errors="replace"))
        except subprocess.TimeoutExpired:
            end = f"it hangs so that its process had to be killed after {limit_s:g} s"
        lines = result.read_text(encoding="utf-8").splitlines(keepends=True)
    # A process that dies may leave half a line behind.
    return [Seen.model_validate_json(line) for line in lines if line.endswith("\n")], end


def _end(code: int, stderr: str) -> str:
    how = f"dies of {signal.Signals(-code).name}" if code < 0 else f"ends with exit code {code}"
    last = stderr.strip().splitlines()[-1:]
    return ": ".join([f"a process that loads it {how}", *last])


#: The environment variables that were set or removed. Comparing before and after would miss what this process inherited from
#: one that has imported the plugin already.
_touched: set[str] = set()


def _watch_environment(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.putenv", "os.unsetenv"):
        _touched.add(os.fsdecode(arguments[0]))


def _look(row: Sequence[str]) -> Seen:
    name, distribution, version, value, problem = row
    modules = set(sys.modules)
    _touched.clear()
    item = Discovered(name, distribution, version, EntryPoint(name, value, PROJECT), problem)
    registry = Registry.load([item], strict=False)
    limit_s = guard.time_limit_s()
    seen = []
    for loaded in registry.loaded:
        try:
            seen.append(guard.call(partial(_quirk, loaded), limit_s))
        except guard.TimeLimitError as error:
            return Seen(error=f"judging {loaded.quirk.id} {error}")
    return Seen(
        error=registry.broken[0].error if registry.broken else "",
        heavy=tuple(sorted(HEAVY & (set(sys.modules) - modules))),
        environment=tuple(sorted(_touched)),
        quirks=tuple(seen),
    )


def _quirk(item: Loaded) -> SeenQuirk:
    try:
        plans = tuple(sha256(resolve(example.context(), [item]).to_json()) for example in item.quirk.examples)
        declared = digest(item.quirk)
    except Exception:  # the laws say what is wrong
        plans, declared = (), ""
    return SeenQuirk(
        id=item.quirk.id,
        location=str(item.quirk.location),
        supersedes=item.quirk.supersedes,
        digest=declared,
        plans=plans,
        problems=tuple(problems(item)),
    )


def _write(seen: Seen, result: IO[str]) -> None:
    result.write(seen.model_dump_json() + "\n")
    result.flush()


def _main(orders_file: str, result_file: str) -> None:
    orders = TypeAdapter(dict[str, list[str] | list[list[str]]]).validate_json(Path(orders_file).read_bytes())
    sys.addaudithook(_watch_environment)
    sys.path[:] = [str(entry) for entry in orders["path"]]
    with Path(result_file).open("a", encoding="utf-8") as result:
        for row in orders["plugins"]:
            try:
                seen = _look(row)
            except Exception as error:
                seen = Seen(error=str(error) if isinstance(error, QuirksError) else words(error))
            _write(seen, result)
            if seen.error or seen.heavy or seen.environment:
                os._exit(0)  # the next plugin starts in a clean process; a hanging thread cannot be waited for


if __name__ == "__main__":
    _main(*sys.argv[1:])
