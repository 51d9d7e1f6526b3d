"""What a refit audit found, as records that travel as JSON."""

from __future__ import annotations

from typing import Literal

from quirks_core.base.errors import QuirksError
from quirks_core.base.record import Record
from worker.refit.weights.scope import RefitScope

#: The refits of an engine without quirks, in order: what most trainers send, what a checkpoint holds, and the first once more
#: on correct weights. What the third one destroys is also lost after a start from the checkpoint.
REFITS = (
    ("parameters", RefitScope.PARAMETERS),
    ("state_dict", RefitScope.STATE_DICT),
    ("parameters again", RefitScope.PARAMETERS),
)
FIRST, COMPLETE, AGAIN = (label for label, _ in REFITS)
#: The refits with the plan in force; the second sends the same weights again.
PLANNED_REFITS = ("plan", "plan again")


class AuditError(QuirksError):
    """The audit cannot be made; the message says why and what to do."""

    exit_code = 2


class Hazard(Record):
    """A tensor of the engine, or the output of a layer, that differs from the checkpoint's after a refit without quirks."""

    name: str  #: the engine's name of it; the module's for a computation
    #: ``parameter``, ``buffer`` or ``computation``: a layer whose output differs although its tensors are right
    kind: Literal["parameter", "buffer", "computation"]
    module: str  #: path of the module that owns it
    module_class: str  #: its class, with the Python module
    persistent: bool  #: a state dict of the engine's model holds it
    shape: tuple[int, ...]  #: its shape in one engine process
    problem: str  #: how it differs from the checkpoint's, after the first refit that shows it
    in_checkpoint: bool  #: loading the checkpoint writes it, or the tensors of a layer whose output differs
    #: the checkpoint's names that it is written from, the first few; empty if they are unknown
    checkpoint: tuple[str, ...]
    workers: tuple[int, ...]  #: the engine processes that differ
    after: tuple[str, ...]  #: the refits without quirks after which it differs (`REFITS`)
    #: the refits with the plan in force after which it differs (`PLANNED_REFITS`); None if the plan does not affect weights, so
    #: nothing was tried
    planned: tuple[str, ...] | None = None
    covered_by: tuple[str, ...] = ()  #: what makes it right: ids of quirks, or keys of the configuration

    @property
    def state_dict_restores(self) -> bool:
        """A refit of the state dict makes it right."""
        return COMPLETE not in self.after

    @property
    def is_destroyed(self) -> bool:
        """A refit of parameters destroys it although it was right before, so a start from the checkpoint does not help."""
        return self.state_dict_restores and AGAIN in self.after

    @property
    def is_covered(self) -> bool:
        """With the plan in force it is right."""
        return self.planned == ()

    @property
    def remedy(self) -> str:
        """What to do where nothing covers it, as far as the refits show."""
        if self.state_dict_restores:
            return "a refit of the state dict restores it: refit.scope=state_dict"
        if not self.in_checkpoint and self.kind == "buffer":
            return "no checkpoint holds it, so no refit can send it: a patch must compute it again"
        if {FIRST, COMPLETE, AGAIN} <= set(self.after) and self.kind != "buffer":
            return "no refit takes effect: the engine must process the layer again, which needs a patch"
        return "no refit restores it: try engine.load_format=auto; if that does not help, it needs a patch"


class Refit(Record):
    """One refit and its result."""

    label: str  #: one of `REFITS` or `PLANNED_REFITS`
    scope: str  #: what was sent
    refused: str = ""  #: why the worker does not generate after it; empty if it does
    differs: tuple[str, ...] = ()  #: names of the tensors and modules that differ from the checkpoint's


class Audit(Record):
    """A refit audit."""

    date: str  #: when it was made (ISO)
    model: str  #: name of the model
    model_type: str  #: its ``model_type``
    platform: str  #: ``cpu`` or ``cuda``
    versions: dict[str, str]  #: versions of the relevant packages
    plan: str  #: digest of the plan in force
    quirks: tuple[str, ...]  #: the active quirks that could affect the weights after a refit; the first engine ran without them
    refits: tuple[Refit, ...]  #: every refit, in order
    hazards: tuple[Hazard, ...]  #: what differs after one of `REFITS`
    seconds: float = 0.0  #: how long it took

    @property
    def clean(self) -> bool:
        """A refit without quirks is right: no tensor and no computation differs, and the worker generates."""
        return not self.hazards and not any(refit.refused for refit in self.refits if refit.label == FIRST)

    @property
    def passed(self) -> bool:
        """It is clean, or the plan in force makes everything right."""
        if self.clean:
            return True
        planned = [refit for refit in self.refits if refit.label in PLANNED_REFITS]
        right = bool(planned) and not any(refit.refused or refit.differs for refit in planned)
        return right and all(hazard.is_covered for hazard in self.hazards)
