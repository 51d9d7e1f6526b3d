"""How long loading 500 quirks takes.

    python benchmarks/registry.py            a table
    python benchmarks/registry.py --json     the same as JSON

The quirks are fake and third party: 500 modules with one quirk each, and one module that declares 500. Every load is a process
of its own, for a second one would find the modules imported.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import measure

COUNT = 500
_MODULES = f"load {COUNT} quirks of {COUNT} modules"
_LOAD = """
import time
import quirks_core.plugins.registry, quirks_core.declaration.quirk
import quirks_core.declaration.match, quirks_core.declaration.adjustments
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry
found = [item for item in discover() if item.distribution.startswith("acme")]
start = time.perf_counter()
registry = Registry.load(found)
print((time.perf_counter() - start) * 1e3, len(registry.loaded), len(registry.broken))
"""
_IMPORT = """
import importlib, time
import quirks_core.plugins.registry, quirks_core.declaration.quirk
import quirks_core.declaration.match, quirks_core.declaration.adjustments
from quirks_core.plugins.finder import discover
found = [item for item in discover() if item.distribution.startswith("acme")]
start = time.perf_counter()
modules = [importlib.import_module(item.module) for item in found]
print((time.perf_counter() - start) * 1e3, len(modules), 0)
"""
_HEAD = """from quirks_core import Affected, Default, Quirk, Severity, hookimpl, model_type, report

def make(number):
    return Quirk(
        id=f"acme-{number}",
        title=f"Something goes wrong, number {number}",
        flag="sleep",
        match=model_type(f"acme{number % 50}"),
        affected=Affected("vllm", fixed=f"0.{number % 30 + 1}"),
        adjustments=Default("engine.enforce_eager", True),
        severity=Severity.SLOW,
        references=report("https://example.org/1"),
    )

"""
_PACK = f"{_HEAD}@hookimpl\ndef quirks_declare():\n    return [make(number) for number in range({COUNT})]\n"


def sites(root: Path) -> dict[str, Path]:
    """Makes a folder of installed distributions for every case."""
    points = {f"acme-{number}": f"acme_{number}:QUIRK" for number in range(COUNT)}
    modules = {f"acme_{number}": f"from acme_head import make\nQUIRK = make({number})\n" for number in range(COUNT)}
    measure.install(root / "modules", "acme-modules", points, {"acme_head": _HEAD, **modules})
    measure.install(root / "pack", "acme-pack", {"acme-pack": "acme_pack"}, {"acme_pack": _PACK})
    return {
        _MODULES: root / "modules",
        f"load {COUNT} quirks of 1 module": root / "pack",
    }


def load(site: Path, code: str = _LOAD) -> float:
    """Milliseconds of loading, or of importing alone, in a process of its own.

    Raises:
        RuntimeError: Not everything was loaded.
    """
    milliseconds, loaded, broken = measure.child(code, site)
    if (int(loaded), int(broken)) != (COUNT, 0):
        raise RuntimeError(f"{loaded} quirks were loaded and {broken} plugins are broken")
    return float(milliseconds)


def results(rounds: int) -> Iterator[measure.Row]:
    """Measures loading."""
    with tempfile.TemporaryDirectory() as folder:
        found = sites(Path(folder))
        bare = f"import {COUNT} modules with a quirk each"
        cases = {bare: partial(load, found[_MODULES], _IMPORT), **{name: partial(load, site) for name, site in found.items()}}
        yield from measure.rows(measure.in_turns(cases, rounds), to=bare)


if __name__ == "__main__":
    sys.exit(measure.main(__doc__ or "", results, rounds=10))
