"""What this process carries out of a plan: its variables and patches, how it acknowledges them, and how all is undone.

The plan names quirk ids; each process loads those quirks from its own installation, so no code travels.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.apply.handed_down import VLLM_PLUGINS
from quirks_core.apply.patching import install, is_pending
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.configuration.slots import Place, placed
from quirks_core.declaration.adjustments import Patch
from quirks_core.plan.receipt import Acknowledgement, Effect
from quirks_core.plan.records import PlannedPatch, ProcessPlan
from quirks_core.source.vllm_source import INSTALLED

if TYPE_CHECKING:
    from quirks_core.plugins.registry import Registry


@dataclass(slots=True)
class Overlay:
    """Environment variables that were set on top of the user's."""

    _before: dict[str, str | None] = field(default_factory=dict)

    def set(self, variable: str, value: str) -> None:
        """Sets a variable; `restore` sets it back."""
        self._before.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = value

    def original(self) -> dict[str, str]:
        """Returns the environment as the user set it."""
        found = {**os.environ, **{name: text for name, text in self._before.items() if text is not None}}
        return {name: text for name, text in found.items() if self._before.get(name, text) is not None}

    def restore(self) -> None:
        """Sets every variable back to what it was."""
        for variable, text in self._before.items():
            os.environ.pop(variable, None)
            if text is not None:
                os.environ[variable] = text
        self._before.clear()


#: The overlay of this process.
environment = Overlay()


@dataclass(slots=True)
class _InForce:
    plan: ProcessPlan | None = None
    digest: str = ""
    pid: int = 0  # a forked process inherits this record
    variables: tuple[Effect, ...] = ()
    patches: list[Callable[[], None]] = field(default_factory=list)  # each removes one
    log: logging.Handler | None = None


_in_force = _InForce()


def carry_out(plan: ProcessPlan) -> None:
    """Puts a plan into force in this process; a second call with the same one changes nothing.

    Another plan with the same patches takes the place of the first without touching them, so that a second engine of one
    process never sees the first without.

    Raises:
        QuirksError: The plan cannot be carried out here; nothing of it is in force then.
    """
    digest = plan.digest
    if (digest, os.getpid()) == (_in_force.digest, _in_force.pid):
        return
    if _in_force.plan is not None and _in_force.plan.patches == plan.patches:
        if digest != _in_force.digest:  # else only the process is another one: it was forked
            _in_force.variables = _set_environment(plan)
    else:
        _take_off()
        try:
            _in_force.variables = _set_environment(plan)
            _install_patches(plan)
        except BaseException:
            _take_off()  # half a plan is worse than none
            raise
    _in_force.plan, _in_force.digest, _in_force.pid = plan, digest, os.getpid()


def acknowledgement(engine: dict[str, Any] | None = None) -> Acknowledgement:
    """Returns what this process carries out, with the values by slot of its engine's configuration."""
    patches = (
        Effect(
            slot=f"patch.{one.target}",
            before=INSTALLED.fingerprint(one.target) or "",
            after=one.source,
            pending=is_pending(one.target),
        )
        for one in (_in_force.plan.patches if _in_force.plan is not None else ())
    )
    return Acknowledgement(
        pid=os.getpid(),
        process=process_name(),
        digest=_in_force.digest,
        effects=(*_in_force.variables, *patches),
        engine=engine or {},
        host=socket.gethostname(),
    )


def process_name() -> str:
    """Returns this process's name behind its parent's: each data-parallel rank has a worker 0 of its own."""
    parent, own = multiprocessing.parent_process(), multiprocessing.current_process().name
    return own if parent is None or parent.name == "MainProcess" else f"{parent.name}/{own}"


def undo() -> None:
    """Takes every patch off in this process, keeps errors no longer, and restores the environment."""
    _take_off()
    environment.restore()
    if _in_force.log is not None:
        logging.getLogger("vllm").removeHandler(_in_force.log)
        _in_force.log.close()
        _in_force.log = None


def _take_off() -> None:
    while _in_force.patches:
        _in_force.patches.pop()()
    _in_force.plan, _in_force.digest, _in_force.pid, _in_force.variables = None, "", 0, ()


def _set_environment(plan: ProcessPlan) -> tuple[Effect, ...]:
    changes = placed(Place.VARIABLE, plan.changes)
    before = environment.original()  # they may have been handed down already
    os.environ.update(changes)
    return tuple(Effect(slot=f"env.{name}", before=before.get(name), after=value) for name, value in changes.items())


def _install_patches(plan: ProcessPlan) -> None:
    if not plan.patches:
        return
    from quirks_core.plugins.finder import discover
    from quirks_core.plugins.registry import Registry  # most processes have no patch to look for

    wanted = {(planned.quirk.distribution, planned.quirk.version, planned.entry_point) for planned in plan.patches}
    registry = Registry.load([item for item in discover() if (item.distribution, item.version, item.name) in wanted])
    for planned in plan.patches:
        _in_force.patches.append(install(_patch_here(planned, registry), planned.quirk.id))


def _patch_here(planned: PlannedPatch, registry: Registry) -> Patch:
    wanted = planned.quirk
    for item in registry.loaded:
        if (item.quirk.id, item.distribution, item.version) == (wanted.id, wanted.distribution, wanted.version):
            for adjustment in item.quirk.adjustments:
                if isinstance(adjustment, Patch) and (adjustment.target, adjustment.source) == (planned.target, planned.source):
                    return adjustment
    why = "; ".join(map(str, registry.broken)) or "it is not installed in that version"
    raise QuirksError(f"this process cannot load quirk {wanted}: {why}")


def keep_errors(folder: Path) -> None:
    """Writes what vLLM logs as errors in this process into a folder, so that the driver can report why an engine died."""
    if _in_force.log is not None or not folder.is_dir():  # the folder of another machine
        return
    handler = logging.FileHandler(folder / f"errors-{os.getpid()}.log", encoding="utf-8", delay=True)
    handler.setLevel(logging.ERROR)
    handler.setFormatter(logging.Formatter(f"{process_name()}: %(message)s"))
    logging.getLogger("vllm").addHandler(handler)
    _in_force.log = handler


def check_engine_environment(environ: Mapping[str, str]) -> None:
    """Makes sure that vLLM will load our plugins in every process.

    Raises:
        UsageError: It will not: VLLM_PLUGINS is set and does not name ours.
    """
    names = environ.get("VLLM_PLUGINS")
    if names is None:
        return
    missing = [name for name in VLLM_PLUGINS if name not in names.split(",")]
    if missing:
        wanted = ",".join(filter(None, [names, *missing]))
        raise UsageError(
            f"VLLM_PLUGINS={names!r} keeps quirks out of the engine's processes; set VLLM_PLUGINS={wanted!r}, or unset it"
        )
