"""What a refit audit found, as records that travel as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from quirks_core.errors import QuirksError
from worker.parity.records import ParityRecord
from worker.refit.scope import RefitScope

#: The refits of an engine without quirks, in order: what most trainers send, what a checkpoint holds, and the former once
#: more, now on weights that are right. What is lost then would be lost as well after a start from the checkpoint.
REFITS = (
    ("parameters", RefitScope.PARAMETERS),
    ("state_dict", RefitScope.STATE_DICT),
    ("parameters again", RefitScope.PARAMETERS),
)
FIRST, COMPLETE, AGAIN = (label for label, _ in REFITS)
#: The refits with the plan in force; the second is of weights that are there already.
PLANNED_REFITS = ("plan", "plan again")


class AuditError(QuirksError):
    """The audit cannot be made; the message says why and what to do."""


class Hazard(ParityRecord):
    """A tensor of the engine, or what a layer computes, that a refit without quirks does not bring to the checkpoint's value.

    Attributes:
        name: The engine's name of it; of a computation, the module's.
        kind: ``parameter``, ``buffer`` or ``computation``: a layer that answers otherwise though its tensors are right.
        module: Path of the module that owns it.
        module_class: Its class, with the Python module.
        persistent: A state dict of the engine's model holds it.
        shape: Its shape in one engine process.
        problem: How it differs from the checkpoint's, after the first refit that shows it.
        in_checkpoint: Loading the checkpoint writes it, or the tensors of a layer that computes otherwise.
        checkpoint: The checkpoint's names that it is written from, the first few; empty where they cannot be told.
        workers: The engine processes that differ.
        after: The refits without quirks after which it differs (`REFITS`).
        planned: The refits with the plan in force after which it differs (`PLANNED_REFITS`); None if the plan changes nothing
            about weights, so that there was nothing to try.
        covered_by: What makes it right: ids of quirks, or keys of the configuration.
    """

    name: str
    kind: Literal["parameter", "buffer", "computation"]
    module: str
    module_class: str
    persistent: bool
    shape: tuple[int, ...]
    problem: str
    in_checkpoint: bool
    checkpoint: tuple[str, ...]
    workers: tuple[int, ...]
    after: tuple[str, ...]
    planned: tuple[str, ...] | None = None
    covered_by: tuple[str, ...] = ()

    @property
    def state_dict_restores(self) -> bool:
        """A refit of the state dict makes it right."""
        return COMPLETE not in self.after

    @property
    def is_destroyed(self) -> bool:
        """A refit of parameters loses it although it was right before, so a start from the checkpoint does not help."""
        return self.state_dict_restores and AGAIN in self.after

    @property
    def is_covered(self) -> bool:
        """With the plan in force it is right."""
        return self.planned == ()


class Refit(ParityRecord):
    """One refit, and what it left.

    Attributes:
        label: One of `REFITS` or `PLANNED_REFITS`.
        scope: What was sent.
        refused: Why the worker does not generate after it; empty if it does.
        differs: Names of the tensors and modules that differ from the checkpoint's.
    """

    label: str
    scope: str
    refused: str = ""
    differs: tuple[str, ...] = ()


class Logits(ParityRecord):
    """Logprobs of one and the same tokens: an engine that was refitted against one that loaded the checkpoint.

    Attributes:
        tokens: How many were compared.
        max_abs_delta: Largest difference, in nats.
        mean_abs_delta: Mean difference, in nats.
        nonfinite: How many were NaN or infinite; they count for nothing else.
        tolerance: The largest difference that equal weights explain.
    """

    tokens: int
    max_abs_delta: float
    mean_abs_delta: float
    nonfinite: int
    tolerance: float

    @property
    def close(self) -> bool:
        """Equal weights explain the differences."""
        return self.nonfinite == 0 and self.max_abs_delta <= self.tolerance

    @classmethod
    def of(cls, got: Sequence[float], expected: Sequence[float], tolerance: float) -> Logits:
        """Compares N logprobs with N others.

        Raises:
            ValueError: They are not as many.
        """
        apart = [abs(one - other) for one, other in zip(got, expected, strict=True)]
        finite = [delta for delta in apart if delta < float("inf")]  # false for NaN as well
        return cls(
            tokens=len(apart),
            max_abs_delta=max(finite, default=0.0),
            mean_abs_delta=sum(finite) / max(len(finite), 1),
            nonfinite=len(apart) - len(finite),
            tolerance=tolerance,
        )


class Audit(ParityRecord):
    """A refit audit.

    Attributes:
        date: When it was made (ISO).
        model: Name of the model.
        model_type: Its ``model_type``.
        platform: ``cpu`` or ``cuda``.
        versions: Versions of the packages that decide.
        plan: Digest of the plan in force.
        quirks: The active quirks that could concern what a refit leaves; the first engine ran without them.
        refits: Every refit, in order.
        hazards: What differs after one of `REFITS`.
        logits: After the first refit without quirks; None if the worker refuses to generate then, or nobody asked.
        planned_logits: After the refits with the plan in force; None if there were none, or nobody asked.
        seconds: How long it took.
        skeleton: A declaration to begin a new quirk with, if there are hazards that nothing covers; else empty.
    """

    date: str
    model: str
    model_type: str
    platform: str
    versions: dict[str, str]
    plan: str
    quirks: tuple[str, ...]
    refits: tuple[Refit, ...]
    hazards: tuple[Hazard, ...]
    logits: Logits | None = None
    planned_logits: Logits | None = None
    seconds: float = 0.0
    skeleton: str = ""

    @property
    def clean(self) -> bool:
        """A refit without quirks is right: no tensor, no computation and no logprob differs, and the worker generates."""
        refused = any(refit.refused for refit in self.refits if refit.label == FIRST)
        return not self.hazards and not refused and (self.logits is None or self.logits.close)

    @property
    def passed(self) -> bool:
        """It is clean, or the plan in force makes everything right."""
        if self.clean:
            return True
        planned = [refit for refit in self.refits if refit.label in PLANNED_REFITS]
        right = bool(planned) and not any(refit.refused or refit.differs for refit in planned)
        right = right and all(hazard.is_covered for hazard in self.hazards)
        return right and (self.planned_logits is None or self.planned_logits.close)
