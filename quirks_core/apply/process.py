"""What this process carries out of a plan: its variables and patches, and how it acknowledges them.

The plan names quirk ids; each process loads those quirks from its own installation, so no code travels.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.apply.parent_watchdog import end_with_parent
from quirks_core.apply.patching import InstalledPatch, install
from quirks_core.apply.receipt import Acknowledgement, Effect
from quirks_core.base.errors import QuirksError
from quirks_core.declaration.adjustments import Patch
from quirks_core.plan.records import PlannedPatch, ProcessPlan

if TYPE_CHECKING:
    from quirks_core.plugins.registry import Registry


@dataclass(slots=True)
class _InForce:
    """What this process carries out."""

    plan: ProcessPlan | None = None
    digest: str = ""
    folder: Path | None = None
    pid: int = 0  # a forked process inherits this record, but has not acknowledged
    variables: tuple[Effect, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    patches: list[InstalledPatch] = field(default_factory=list)
    log: logging.Handler | None = None

    def acknowledge(self) -> None:
        """Tells the driver what this process carries out; once more when a pending patch has come into force."""
        if self.digest and self.folder is not None:  # else it is still at it, or nobody reads files
            acknowledgement().write(self.folder)


_in_force = _InForce()


def carry_out(plan: ProcessPlan, folder: Path | None = None) -> None:
    """Puts a plan into force in this process; a second call with the same one changes nothing.

    Another plan with the same patches takes the place of the first without touching them, so that a second engine of one
    process never sees the first without.

    Args:
        plan: What to carry out.
        folder: Where to acknowledge, and to keep what vLLM logs as errors, for the driver that started this process, with which
            this process ends. None for a process of an engine that is not ours: it is asked by the engine's own calls, and
            its life is its own business.

    Raises:
        QuirksError: The plan cannot be carried out here; nothing of it is in force then.
    """
    digest = plan.digest
    if (digest, folder, os.getpid()) == (_in_force.digest, _in_force.folder, _in_force.pid):
        return
    if folder is None and _in_force.folder is None and _in_force.plan is not None and _in_force.plan.patches == plan.patches:
        if digest != _in_force.digest:  # else only the process is another one: it was forked
            _in_force.variables = _set_environment(plan)
    else:
        undo()
        if folder is not None:
            _in_force.log = _keep_errors(folder)
        try:
            _in_force.variables = _set_environment(plan)
            _install_patches(plan)
        except BaseException:
            undo()  # half a plan is worse than none
            raise
    _in_force.plan, _in_force.digest, _in_force.folder, _in_force.pid = plan, digest, folder, os.getpid()
    if folder is not None:
        end_with_parent()
    _in_force.acknowledge()


def acknowledgement(engine: dict[str, Any] | None = None) -> Acknowledgement:
    """Returns what this process carries out.

    Args:
        engine: Values by slot of the engine's configuration in this process; those that were reported if None.
    """
    patches = (
        Effect(slot=f"patch.{item.patch.target}", before=item.fingerprint, after=item.patch.source, pending=item.is_pending)
        for item in _in_force.patches
    )
    return Acknowledgement(
        pid=os.getpid(),
        process=process_name(),
        digest=_in_force.digest,
        effects=(*_in_force.variables, *patches),
        engine=_in_force.engine if engine is None else engine,
        host=socket.gethostname(),
    )


def process_name() -> str:
    """Returns this process's name behind its parent's: each data-parallel rank has a worker 0 of its own."""
    parent, own = multiprocessing.parent_process(), multiprocessing.current_process().name
    return own if parent is None or parent.name == "MainProcess" else f"{parent.name}/{own}"


def report_configuration(values: dict[str, Any]) -> None:
    """Tells the driver what this process's own engine configuration holds.

    Args:
        values: Values by slot.
    """
    _in_force.engine = values
    _in_force.acknowledge()


def in_force() -> str | None:
    """Returns the digest of the plan that this process carries out; None if there is none."""
    return _in_force.digest or None


def plan_in_force() -> ProcessPlan | None:
    """Returns the plan that this process carries out; None if there is none."""
    return _in_force.plan


def undo() -> None:
    """Takes every patch off in this process; the environment is the driver's to restore."""
    while _in_force.patches:
        _in_force.patches.pop().undo()
    if _in_force.log is not None:
        logging.getLogger("vllm").removeHandler(_in_force.log)
        _in_force.log.close()
    _in_force.plan, _in_force.digest, _in_force.folder, _in_force.pid, _in_force.log = None, "", None, 0, None
    _in_force.variables, _in_force.engine = (), {}


def _set_environment(plan: ProcessPlan) -> tuple[Effect, ...]:
    effects = []
    for slot, value in plan.changes.items():
        family, _, variable = slot.partition(".")
        if family == "env":
            effects.append(Effect(slot=slot, before=os.environ.get(variable), after=value))
            os.environ[variable] = value
    return tuple(effects)


def _install_patches(plan: ProcessPlan) -> None:
    if not plan.patches:
        return
    registry = _quirks_with(plan.patches)
    for planned in plan.patches:
        patch = _patch_here(planned, registry)
        _in_force.patches.append(install(patch, planned.quirk.id, when_in_force=_in_force.acknowledge))


def _quirks_with(patches: Iterable[PlannedPatch]) -> Registry:
    """Loads the quirks of planned patches, and no other, from this process's own installation."""
    from quirks_core.plugins.discovery import discover
    from quirks_core.plugins.registry import Registry  # most processes have no patch to look for

    wanted = {(planned.quirk.distribution, planned.quirk.version, planned.entry_point) for planned in patches}
    return Registry.load([item for item in discover() if (item.distribution, item.version, item.name) in wanted])


def _patch_here(planned: PlannedPatch, registry: Registry) -> Patch:
    wanted = planned.quirk
    for item in registry.loaded:
        if (item.quirk.id, item.distribution, item.version) == (wanted.id, wanted.distribution, wanted.version):
            for adjustment in item.quirk.adjustments:
                if isinstance(adjustment, Patch) and (adjustment.target, adjustment.source) == (planned.target, planned.source):
                    return adjustment
    why = "; ".join(map(str, registry.broken)) or "it is not installed in that version"
    raise QuirksError(f"this process cannot load quirk {wanted}: {why}")


def _keep_errors(folder: Path) -> logging.Handler:
    """Keeps what vLLM logs as errors, so that the driver can say why an engine died."""
    handler = logging.FileHandler(folder / f"errors-{os.getpid()}.log", encoding="utf-8", delay=True)
    handler.setLevel(logging.ERROR)
    handler.setFormatter(logging.Formatter(f"{process_name()}: %(message)s"))
    logging.getLogger("vllm").addHandler(handler)
    return handler
