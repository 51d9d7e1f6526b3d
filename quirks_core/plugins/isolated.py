"""Loads plugins in a process of its own with a time limit, and holds their quirks against the laws.

If a plugin ends its process, hangs, or imports heavy packages, the result is one line in a report.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter

from quirks_core.base.json_values import sha256
from quirks_core.base.record import Record
from quirks_core.declaration.encoding import digest
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.resolve import resolve
from quirks_core.plugins.finder import PROJECT, Discovered
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import problems
from quirks_core.reporting.finding import Finding

#: Packages that plugins must not import.
HEAVY = frozenset({"ray", "torch", "transformers", "vllm"})
#: Seconds that a process may take.
LIMIT_S = 120.0


class SeenQuirk(Record):
    """A quirk of a plugin.

    Attributes:
        id: Its id.
        location: Where it is declared.
        supersedes: Ids of the quirks that it replaces.
        digests: SHA-256 of the declaration, and of the plan for each example; none if they cannot be computed.
    """

    id: str
    location: str
    supersedes: tuple[str, ...]
    digests: tuple[str, ...]


class Seen(Record):
    """One plugin, loaded in a separate process.

    Attributes:
        error: Why it does not load; empty if it does.
        impure: The packages of `HEAVY` that were imported, and the environment variables that were set or removed, while it
            was loaded and its examples were evaluated: what it does, and what to do instead.
        quirks: Its quirks.
        problems: The rules that its quirks violate.
    """

    error: str = ""
    impure: tuple[str, ...] = ()
    quirks: tuple[SeenQuirk, ...] = ()
    problems: tuple[Finding, ...] = ()


#: What a process prints: what it has seen of each plugin.
_REPORT = TypeAdapter(list[Seen])


def look(plugins: Iterable[Discovered], *, hash_seed: str | None = None, limit_s: float = LIMIT_S) -> list[Seen]:
    """Loads plugins in order of their distributions, those of one in one process, and validates their declarations.

    If anything is wrong with a distribution's plugins, each is loaded alone, so that none is blamed for another.
    """
    seen: list[Seen] = []
    for _, group in groupby(plugins, key=lambda item: item.distribution):
        together = list(group)
        found = _run(together, hash_seed, limit_s)
        if len(together) > 1 and any(one.error or one.impure for one in found):
            found = [one for item in together for one in _run([item], hash_seed, limit_s)]
        seen += found
    return seen


def _run(plugins: Sequence[Discovered], hash_seed: str | None, limit_s: float) -> Sequence[Seen]:
    rows = [(item.entry_point.value, item.name, item.distribution, item.version, item.problem, item.file) for item in plugins]
    environ = {**os.environ, **({"PYTHONHASHSEED": hash_seed} if hash_seed else {})}
    command, wanted = [sys.executable, "-P", "-m", "quirks_core.plugins.isolated"], json.dumps([sys.path, rows])
    options: dict[str, Any] = {"env": environ, "capture_output": True, "text": True, "errors": "replace", "timeout": limit_s}
    try:
        done = subprocess.run(command, input=wanted, check=False, **options)  # noqa: S603 - our own program
    except subprocess.TimeoutExpired:
        return [Seen(error=f"loading and checking it took more than {limit_s:g} s")] * len(plugins)
    if done.returncode == 0 and done.stdout:
        return _REPORT.validate_json(done.stdout.splitlines()[-1])
    code = done.returncode
    how = f"dies of {signal.Signals(-code).name}" if code < 0 else f"ends with exit code {code}"
    last = done.stderr.strip().splitlines()[-1:]
    return [Seen(error=": ".join([f"a process that loads it {how}", *last]))] * len(plugins)


#: The environment variables that were set or removed. Comparing before and after would miss a variable that this process
#: inherited from a process that has already imported the plugin.
_touched: set[str] = set()


def _watch_environment(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.putenv", "os.unsetenv"):
        _touched.add(os.fsdecode(arguments[0]))


def _look(item: Discovered) -> tuple[Registry, Seen]:
    modules = set(sys.modules)
    _touched.clear()
    registry = Registry.load([item])
    quirks = tuple(
        SeenQuirk(id=one.quirk.id, location=str(one.quirk.location), supersedes=one.quirk.supersedes, digests=_digests(one))
        for one in registry.loaded
    )
    found = {
        "imports": (HEAVY & (set(sys.modules) - modules), "import it inside the function that needs it"),
        "changes": (_touched, "a quirk asks for an env.* slot instead"),
    }
    impure = tuple(f"{verb} {', '.join(sorted(names))}: {instead}" for verb, (names, instead) in found.items() if names)
    return registry, Seen(error=registry.broken[0].error if registry.broken else "", impure=impure, quirks=quirks)


def _digests(item: Loaded) -> tuple[str, ...]:
    try:
        return digest(item.quirk), *(sha256(resolve(example.context(), [item]).to_json()) for example in item.quirk.examples)
    except Exception:  # a law reports the error
        return ()


def _main() -> None:
    sys.path[:], rows = json.load(sys.stdin)
    sys.addaudithook(_watch_environment)
    with redirect_stdout(sys.stderr):
        looked = [
            _look(Discovered(name, distribution, version, EntryPoint(name, value, PROJECT), problem, file))
            for value, name, distribution, version, problem, file in rows
        ]
        seen = [  # after all looks: a law loads other plugins, whose imports would count for the wrong one
            one.model_copy(update={"problems": tuple(why for item in own.loaded for why in problems(item))})
            for own, one in looked
        ]
    sys.stdout.buffer.write(_REPORT.dump_json(seen))


if __name__ == "__main__":
    _main()
