"""How long it takes to install a patch and to undo it.

    python benchmarks/patches.py            a table
    python benchmarks/patches.py --json     the same as JSON

The target is a function of a fake module. A patch also replaces the names under which other modules took the function, so its
cost grows with what is imported: it is measured in a bare process and beside as many names as an engine process holds.
"""

from __future__ import annotations

import gc
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import measure

from quirks_core import Patch
from quirks_core.apply.patching import install
from quirks_core.plan.drift import drift_of
from quirks_core.source.vllm_source import INSTALLED

#: Makes a process as crowded as it is after ``import vllm`` (0.32.0 for CPU): 2 600 modules with 108 000 names.
_MODULES, _NAMES = 2_400, 41
_TARGET = """\
def scaled(logits, temperature):
    return [logit / temperature for logit in logits]


class Sampler:
    pass
"""
_WRAPPERS = "def wrap(original):\n    return lambda *given: original(*given)\n\n\ndef seed(self, number):\n    return number\n"


def once(patch: Patch) -> float:
    """Milliseconds of installing and undoing one patch."""

    def both() -> None:
        install(patch, "acme-benchmark")()

    return measure.timed(both)


def several(patches: list[Patch]) -> float:
    """Milliseconds of installing all patches, of several quirks on one target, and undoing them."""

    def all_of_them() -> None:
        for item in [install(patch, f"acme-{number}") for number, patch in enumerate(patches)]:
            item()

    return measure.timed(all_of_them)


def crowd() -> None:
    """Fills the process with modules."""
    for number in range(_MODULES):
        module = ModuleType(f"acme_crowd_{number}")
        vars(module).update({f"name_{name}": object() for name in range(_NAMES)})
        sys.modules[module.__name__] = module


def cases() -> dict[str, Callable[[], float]]:
    """What is measured."""
    wrap = Patch("acme_target:scaled", wrapper="acme_wrappers:wrap", expects=(INSTALLED.fingerprint("acme_target:scaled"),))
    add = Patch("acme_target:Sampler.seed", adds="acme_wrappers:seed")
    pending = Patch("acme_later:scaled", wrapper="acme_wrappers:wrap", expects=(INSTALLED.fingerprint("acme_later:scaled"),))
    return {
        "wrap a function, and undo": partial(once, wrap),
        "compare a fingerprint, which is part of it": lambda: measure.timed(lambda: drift_of(wrap, None, INSTALLED)),
        "10 wrappers of one function, and undo": partial(several, [wrap] * 10),
        "add a method, and undo": partial(once, add),
        "wait for a module that is not imported, and undo": partial(once, pending),
    }


def results(rounds: int) -> Iterator[measure.Row]:
    """Measures in a bare process, then in a crowded one."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("acme_target", _TARGET), ("acme_later", _TARGET), ("acme_wrappers", _WRAPPERS)):
            Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        for name in ("acme_target", "acme_wrappers"):
            importlib.import_module(name)
        for crowded in (False, True):
            if crowded:
                crowd()
            what = f" ({len(sys.modules)} modules)"
            gc.collect()
            gc.freeze()
            measured = {f"{name}{what}": call for name, call in cases().items()}
            times = measure.in_turns(measured, rounds)
            yield from measure.rows(times, to=next(iter(measured)))


if __name__ == "__main__":
    sys.exit(measure.main(__doc__ or "", results, rounds=100))
