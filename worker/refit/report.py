"""What the last refit did with the trainer's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        not_finite: How many values of a tensor are NaN or infinite, by the names of those that have any (``refit.finite``).
    """

    version: str
    copied: int
    reloaded: int
    layers: tuple[str, ...]
    unloaded: tuple[str, ...]
    not_finite: Mapping[str, int]

    @classmethod
    def of(cls, version: str, answers: Sequence[dict[str, Any]]) -> Self:
        """Puts together what each process answered."""
        names = {key: tuple(sorted({name for answer in answers for name in answer[key]})) for key in ("layers", "unloaded")}
        copied, reloaded = (how(answer[way] for answer in answers) for how, way in ((min, "copied"), (max, "reloaded")))
        not_finite: dict[str, int] = {}
        for answer in answers:  # of a tensor that is split, each process sees a part
            not_finite |= {name: max(count, not_finite.get(name, 0)) for name, count in answer["not_finite"].items()}
        return cls(version, copied, reloaded, **names, not_finite=not_finite)

    def __str__(self) -> str:
        return f"{self.version!r}: {self.copied} tensors copied, {self.reloaded} through vLLM's reload"
