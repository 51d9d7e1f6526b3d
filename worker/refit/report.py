"""What the last refit did with the trainer's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RefitReport:
    """Which way the trainer's tensors went, in all processes of an engine.

    Attributes:
        version: Label of the weights.
        copied: How many tensors were copied straight into the model, as recorded at an earlier refit.
        reloaded: How many went through vLLM's layerwise reload.
        layers: The layers for which they did, while others were copied.
        unloaded: Parameters of the model that got no value.
    """

    version: str
    copied: int
    reloaded: int
    layers: tuple[str, ...]
    unloaded: tuple[str, ...]

    @classmethod
    def of(cls, version: str, answers: Sequence[dict[str, Any]]) -> Self:
        """Puts together what each process answered."""
        names = {key: tuple(sorted({name for answer in answers for name in answer[key]})) for key in ("layers", "unloaded")}
        copied, reloaded = (how(answer[way] for answer in answers) for how, way in ((min, "copied"), (max, "reloaded")))
        return cls(version, copied, reloaded, **names)

    def __str__(self) -> str:
        return f"{self.version!r}: {self.copied} tensors copied, {self.reloaded} through vLLM's reload"
