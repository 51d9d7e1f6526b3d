"""What a trainer and the engine of its rollouts must agree on, as one record that either side can make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from quirks_core.base.json_values import sha256
from quirks_core.facts.packages import installed_version
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plan.records import Plan

#: Packages whose versions count, on either side.
_PACKAGES = ("model-quirks", "torch", "transformers", "vllm")
#: By attribute, the slot that it is read from.
SLOTS: Mapping[str, str] = {
    "dtype": "engine.dtype",
    "head_dtype": "engine.head_dtype",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
    "logprobs": "engine.logprobs_mode",
    "scope": "refit.scope",
    "adapters": "engine.enable_lora",
}


def versions_here() -> dict[str, str]:
    """Returns the versions that count, of the packages that are installed here."""
    found = {package: installed_version(package) for package in _PACKAGES}
    return {package: text for package, text in found.items() if text is not None}


@dataclass(frozen=True, slots=True)
class Contract:
    """One side's definition of a rollout; what a side does not know or decide is None, and is not compared.

    Attributes:
        plan: Digest of the engine's plan.
        dtype: Dtype of the matrix products, as ``bfloat16``: autocast's, or that of the weights.
        head_dtype: The same of the language-model head.
        temperature: Of the distribution that the logprobs are of.
        top_p: Of the same; 1 for all tokens.
        top_k: Of the same; 0 or -1 for all tokens.
        logprobs: ``processed_logprobs``, of that distribution; ``raw_logprobs``, of all tokens at temperature 1.
        scope: What a weight update brings: ``parameters`` or ``state_dict``.
        adapters: Whether LoRA adapters are sent as such; False if they are merged, or if there are none.
        versions: By package.
    """

    plan: str | None = None
    dtype: str | None = None
    head_dtype: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    logprobs: str | None = None
    scope: str | None = None
    adapters: bool | None = None
    versions: Mapping[str, str] = field(default_factory=versions_here)

    @classmethod
    def of(cls, plan: Plan) -> Contract:
        """Returns the engine's side as its plan has it: of our worker, or of ``quirks plan``."""
        values = {slot: plan.value(slot) for slot in SLOTS.values()}
        dtype = plan.context.with_values(plan.changes).fact("engine.computes_in")
        values["engine.dtype"] = None if dtype is UNKNOWN else dtype
        packages = {name: text for name, text in plan.context.packages.items() if name in _PACKAGES}
        return cls.of_values(plan.digest, values, versions_here() | packages)

    @classmethod
    def of_values(cls, plan: str, values: Mapping[str, Any], versions: Mapping[str, str]) -> Contract:
        """Returns the engine's side from the values of `SLOTS`; one that is missing is unknown."""
        found = {name: values.get(slot) for name, slot in SLOTS.items()}
        if found["head_dtype"] in (None, "model"):
            found["head_dtype"] = found["dtype"]
        found["adapters"] = bool(found["adapters"])
        return cls(plan=plan, versions=versions, **found)

    @property
    def digest(self) -> str:
        """SHA-256 of its canonical JSON."""
        return sha256(asdict(self))

    def differences(self, other: Contract) -> dict[str, tuple[Any, Any]]:
        """Returns this side's and the other's value of everything in which they differ, by name; versions by package.

        What logprobs mean is no difference where tokens are drawn from all at temperature 1: there they mean the same.
        """
        mine, theirs = self.known, other.known
        if self._is_whole or other._is_whole:
            mine.pop("logprobs", None)
        return {name: (mine[name], theirs[name]) for name in mine if name in theirs and mine[name] != theirs[name]}

    @property
    def known(self) -> dict[str, Any]:
        """What this side knows, by name; versions by package."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "versions"}
        found["top_k"] = 0 if self.top_k == -1 else self.top_k
        return {name: value for name, value in (found | dict(self.versions)).items() if value is not None}

    @property
    def _is_whole(self) -> bool:
        return (self.temperature, self.top_p) == (1, 1) and self.top_k in (0, -1)
