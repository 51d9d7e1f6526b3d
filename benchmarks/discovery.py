"""How long it takes to find 200 installed plugins without importing one, and to list them as a whole process.

    python benchmarks/discovery.py            a table
    python benchmarks/discovery.py --json     the same as JSON

The plugins are fake: metadata in a temporary folder, beside everything that is installed here. Every run is a process of its
own, so that no cache of Python's helps. The modules that the plugins name do not exist; importing one would fail. Exit code 1
if something heavy was imported or plugins were missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

import measure

COUNT = 200
HEAVY = ("pluggy", "pydantic", "torch", "transformers", "ray", "vllm")
_DISCOVER = """
import sys, time
from quirks_core.plugins.finder import discover
start = time.perf_counter()
found = discover()
print((time.perf_counter() - start) * 1e3, len(found), *[name for name in {heavy!r} if name in sys.modules])
"""
_NOTHING, _ONE, _MANY = "nothing more", f"1 distribution with {COUNT} more", f"{COUNT} distributions with 1 more each"
_FILES = f"1 package of {COUNT} files more"

_problems: list[str] = []


def sites(root: Path) -> dict[str, Path]:
    """Makes a folder of installed distributions for every case."""
    found = {name: root / str(number) for number, name in enumerate((_NOTHING, _ONE, _MANY, _FILES))}
    found[_NOTHING].mkdir()
    measure.install(found[_ONE], "acme-quirks", {f"acme-{number}": f"no_such_{number}:QUIRK" for number in range(COUNT)})
    source = f"{'# a comment of this length' * 200}\nraise ImportError\nQUIRK = Quirk(\n    id='acme')\n"
    modules = {"acme_quirks/__init__": "", **{f"acme_quirks/acme_{number}": source for number in range(COUNT)}}
    (found[_FILES] / "acme_quirks").mkdir(parents=True)
    measure.install(found[_FILES], "acme-quirks", {"acme-quirks": "acme_quirks"}, modules)
    for number in range(COUNT):
        measure.install(found[_MANY], f"acme-{number}", {f"acme-{number}": f"no_such_{number}:QUIRK"})
    return found


def discovery(site: Path, expected: int) -> float:
    """Milliseconds of the first discovery in a process; notes what it missed or imported."""
    milliseconds, count, *heavy = measure.child(_DISCOVER.format(heavy=HEAVY), site)
    if heavy or int(count) < expected:
        _problems.append(f"found {count} of at least {expected} plugins; imported {', '.join(heavy) or 'nothing heavy'}")
    return float(milliseconds)


def process(site: Path, *arguments: str) -> float:
    """Milliseconds of a whole Python process."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    call = partial(subprocess.run, [sys.executable, *arguments], check=True, capture_output=True, env=environment)
    return measure.timed(call)


def results(rounds: int) -> Iterator[measure.Row]:
    """Measures discovery within a process, then whole processes."""
    with tempfile.TemporaryDirectory() as folder:
        cases = sites(Path(folder))
        inside = {
            f"discover, {name}": partial(discovery, site, 0 if name == _NOTHING else COUNT) for name, site in cases.items()
        }
        aims = {f"discover, {name}": 100.0 for name in (_ONE, _MANY, _FILES)}
        yield from measure.rows(measure.in_turns(inside, rounds), to=f"discover, {_NOTHING}", aims=aims)
        bare = "a bare Python process"
        whole = {
            bare: partial(process, cases[_NOTHING], "-c", "pass"),
            **{f"quirks list, {name}": partial(process, site, "-m", "quirks_core.cli", "list") for name, site in cases.items()},
            f"quirks list --json, {_MANY}": partial(process, cases[_MANY], "-m", "quirks_core.cli", "list", "--json"),
        }
        aims = {name: 300.0 for name in whole if name != bare}
        yield from measure.rows(measure.in_turns(whole, rounds), to=bare, aims=aims)


if __name__ == "__main__":
    title, _, rest = (__doc__ or "").partition("\n")
    others = sum(1 for _ in distributions())
    sys.exit(
        measure.main(
            f"{title}\n{rest}\n{others} distributions are installed here.", results, rounds=20, notes=lambda: _problems
        )
    )
