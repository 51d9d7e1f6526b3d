"""Loads plugins in separate processes with a time limit, and validates their declarations.

If a plugin ends its process, hangs, or imports heavy packages, the result is one line in a report.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import IO, Any

from quirks_core.base import child_process
from quirks_core.base.errors import QuirksError, words
from quirks_core.base.json_values import sha256
from quirks_core.base.record import Record
from quirks_core.declaration.encoding import digest
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.resolve import resolve
from quirks_core.plugins.discovery import PROJECT, Discovered, discover
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import Problem, narrower, problems

#: Packages that plugins must not import.
HEAVY = frozenset({"ray", "torch", "transformers", "vllm"})
#: Seconds that one plugin may take.
LIMIT_S = 20.0
#: Additional seconds that a process may take.
_GRACE_S = 10.0


class SeenQuirk(Record):
    """One quirk, loaded in a separate process.

    Attributes:
        id: Its id.
        location: File and line.
        supersedes: Ids of the quirks that it replaces.
        digest: SHA-256 of the declaration; empty if it cannot be computed.
        plans: SHA-256 of the plan for each of its examples.
        problems: The rules that it violates.
    """

    id: str
    location: str
    supersedes: tuple[str, ...]
    digest: str
    plans: tuple[str, ...]
    problems: tuple[Problem, ...]


class Seen(Record):
    """One plugin, loaded in a separate process.

    Attributes:
        error: Why it does not load; empty if it does.
        heavy: The packages of `HEAVY` that were imported while it was loaded and its examples were evaluated.
        environment: The environment variables that were set or removed meanwhile.
        quirks: The quirks that it declares.
    """

    error: str = ""
    heavy: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    quirks: tuple[SeenQuirk, ...] = ()


def look(plugins: Sequence[Discovered], *, hash_seed: str | None = None, limit_s: float = LIMIT_S) -> list[Seen]:
    """Loads plugins in a separate process and validates their declarations.

    Args:
        plugins: The plugins. If one of them breaks the process, the next one gets a new process.
        hash_seed: The processes' PYTHONHASHSEED; that of this process if None.
        limit_s: Seconds that one plugin may take.

    Returns:
        What was seen, one per plugin.
    """
    seen: list[Seen] = []
    while left := plugins[len(seen) :]:
        found, end = _run(left, hash_seed, limit_s)
        seen += found or [Seen(error=end)]
    return seen


def _run(plugins: Sequence[Discovered], hash_seed: str | None, limit_s: float) -> tuple[list[Seen], str]:
    """Starts one process; returns its results, and as text how it ended."""
    rows = [(item.name, item.distribution, item.version, item.entry_point.value, item.problem) for item in plugins]
    environ = {**os.environ, **({"PYTHONHASHSEED": hash_seed} if hash_seed else {})}
    with tempfile.TemporaryDirectory(prefix="quirks-isolated-") as folder:
        wanted, result = Path(folder, "wanted.json"), Path(folder, "result.jsonl")
        wanted.write_text(json.dumps({"path": sys.path, "limit_s": limit_s, "plugins": rows}), encoding="utf-8")
        result.touch()
        log = Path(folder, "log")
        command = [sys.executable, "-P", "-m", "quirks_core.plugins.isolated", str(wanted), str(result)]
        with log.open("wb") as output:
            code = child_process.run(command, environ=environ, output=output, limit_s=limit_s * len(plugins) + _GRACE_S)
        end = _end(code, log.read_text(encoding="utf-8", errors="replace"))
        lines = result.read_text(encoding="utf-8").splitlines(keepends=True)
    # A process that dies may write an incomplete line.
    return [Seen.model_validate_json(line) for line in lines if line.endswith("\n")], end


def _end(code: int | None, output: str) -> str:
    if code is None:
        return "it hangs so that its process had to be killed"
    how = f"dies of {signal.Signals(-code).name}" if code < 0 else f"ends with exit code {code}"
    last = output.strip().splitlines()[-1:]
    return ": ".join([f"a process that loads it {how}", *last])


#: The environment variables that were set or removed. Comparing before and after would miss a variable that this process
#: inherited from a process that has already imported the plugin.
_touched: set[str] = set()


def _watch_environment(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.putenv", "os.unsetenv"):
        _touched.add(os.fsdecode(arguments[0]))


def _look(row: Sequence[str]) -> Seen:
    name, distribution, version, value, problem = row
    modules = set(sys.modules)
    _touched.clear()
    item = Discovered(name, distribution, version, EntryPoint(name, value, PROJECT), problem)
    registry = Registry.load([item])
    quirks = tuple(map(_quirk, registry.loaded))
    heavy, environment = HEAVY & (set(sys.modules) - modules), set(_touched)
    return Seen(
        error=registry.broken[0].error if registry.broken else "",
        heavy=tuple(sorted(heavy)),
        environment=tuple(sorted(environment)),
        quirks=tuple(map(_with_replaced, quirks, registry.loaded)),
    )


def _with_replaced(seen: SeenQuirk, item: Loaded) -> SeenQuirk:
    """Adds how a quirk compares with those that it supersedes, as far as an entry point has the id of one."""
    replaced = [other for other in discover() if other.name in seen.supersedes] if seen.supersedes else ()
    try:
        found = list(narrower(item, Registry.load(replaced).loaded))
    except Exception:  # a third party's match may raise anything; the other laws report it
        found = []
    return seen.model_copy(update={"problems": (*seen.problems, *found)})


def _quirk(item: Loaded) -> SeenQuirk:
    try:
        plans = tuple(sha256(resolve(example.context(), [item]).to_json()) for example in item.quirk.examples)
        declared = digest(item.quirk)
    except Exception:  # validation reports the error
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


class _Wanted(Record):
    """What a process is to load.

    Attributes:
        path: ``sys.path`` of the calling process.
        limit_s: Seconds that one plugin may take.
        plugins: Name, distribution, version, entry point and problem of each.
    """

    path: list[str]
    limit_s: float
    plugins: list[list[str]]


class TimeLimit(BaseException):
    """A plugin takes too long. Not an `Exception`, so that no ``except Exception`` of the plugin catches it and hangs again."""


def _too_long(limit_s: float) -> None:
    raise TimeLimit(f"loading and checking it took more than {limit_s:g} s")


def _main(wanted_file: str, result_file: str) -> None:
    wanted = _Wanted.model_validate_json(Path(wanted_file).read_bytes())
    sys.addaudithook(_watch_environment)
    sys.path[:] = wanted.path
    signal.signal(signal.SIGALRM, lambda *_: _too_long(wanted.limit_s))
    with Path(result_file).open("a", encoding="utf-8") as result:
        for row in wanted.plugins:
            signal.setitimer(signal.ITIMER_REAL, wanted.limit_s)
            try:
                seen = _look(row)
            except (Exception, TimeLimit) as error:
                seen = Seen(error=str(error) if isinstance(error, QuirksError) else words(error))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            _write(seen, result)
            if seen.error or seen.heavy or seen.environment:
                os._exit(0)  # the next plugin starts in a clean process


if __name__ == "__main__":
    _main(*sys.argv[1:])
