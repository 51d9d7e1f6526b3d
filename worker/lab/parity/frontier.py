"""What each pair of dtypes leaves of the difference between rollout and trainer, what it costs, and which pair to take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from worker.lab.parity.metrics import METRICS
from worker.lab.parity.notation import number
from worker.lab.parity.records import ParityRecord

FLOAT16, FLOAT32 = "float16", "float32"
#: The largest number of float16, and its smallest above 0.
LARGEST: Final = 65_504.0
SMALLEST: Final = 2.0**-24
#: Difference that a pair may leave unless the user sets another one, in nats: twice that of float16 on both sides, a quarter of
#: that of bfloat16 (SmolLM2-135M, on a CPU and on an H200).
TARGET: Final = 0.01
#: Costs that differ by less are equal: times of short runs are not more exact.
_EQUAL_COSTS = 1.25
_SHORT: Mapping[str, str] = MappingProxyType({"bfloat16": "bf16", FLOAT16: "fp16", FLOAT32: "fp32"})


class Side(ParityRecord):
    """An engine or a trainer that can be had."""

    side: Literal["engine", "trainer"]
    dtype: str  #: of its products
    head: str  #: dtype of the head's product
    weights: str  #: dtype of its weights
    seconds: float = 0.0  #: for 1000 tokens: of the rollouts, or of forward and backward pass
    memory: float = 0.0  #: GB: of weights and KV cache of the rollouts; of weights, gradients and activations
    kv_bytes: float = 0.0  #: bytes of the engine's KV cache for a token
    failed: str = ""  #: why the engine did not start, or died

    @property
    def name(self) -> str:
        """Its name in tables."""
        dtype = _SHORT.get(self.dtype, self.dtype)
        if self.side == "trainer" and self.dtype != FLOAT32:
            dtype = f"all {dtype}" if self.weights == self.dtype else f"{dtype} autocast"
        return dtype if self.head == self.dtype else f"{dtype}, {_SHORT.get(self.head, self.head)} head"

    @property
    def settings(self) -> str:
        """What to set."""
        head = f", {'engine' if self.side == 'engine' else 'train'}.head_dtype={self.head}" if self.head != self.dtype else ""
        if self.side == "engine":
            return f"engine.dtype={self.dtype}{head}"
        autocast = "null" if self.dtype == self.weights else self.dtype
        return f"train.dtype={self.weights}, train.autocast={autocast}{head}"

    @property
    def cost(self) -> float:
        """GB · seconds for 1000 tokens."""
        return self.memory * self.seconds


class Pair(ParityRecord):
    """An engine's rollouts, scored by a trainer."""

    engine: Side
    trainer: Side
    mean_abs_delta: float
    max_abs_delta: float
    kl_k3: float
    nonfinite: int  #: tokens whose logprob is no number on a side; in none of the others

    @property
    def cost(self) -> float:
        """GB · seconds for 1000 tokens, of both sides."""
        return self.engine.cost + self.trainer.cost

    @property
    def is_equal(self) -> bool:
        """Both sides compute in the same dtypes."""
        return (self.engine.dtype, self.engine.head) == (self.trainer.dtype, self.trainer.head)

    @property
    def needs_float16(self) -> bool:
        """A side computes in float16."""
        return FLOAT16 in (self.engine.dtype, self.trainer.dtype)

    @property
    def name(self) -> str:
        """Both sides' names."""
        if self.is_equal:
            return f"{self.engine.name} on both sides"
        return f"{self.engine.name} in the engine, {self.trainer.name} in the trainer"


class Range(ParityRecord):
    """What of a model float16 cannot hold."""

    layers: dict[str, float]  #: the largest absolute activation by layer, in float32 on the rollouts' tokens
    beyond: int  #: weights beyond `LARGEST`
    below: int  #: weights other than 0 below `SMALLEST`
    weights: int  #: all of them

    @property
    def largest(self) -> tuple[str, float]:
        """The layer with the largest activation; one that is no number is the largest."""
        return max(self.layers.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])


class Frontier(ParityRecord):
    """Every pair, measured; the run as it is first."""

    model: str
    device: str  #: ``cpu``, or the name of the GPU
    temperature: float
    tokens: int  #: that each engine generated
    target: float  #: mean |Δ| that a pair may leave, in nats
    engines: tuple[Side, ...]
    trainers: tuple[Side, ...]
    pairs: tuple[Pair, ...]
    range: Range
    versions: dict[str, str]

    @property
    def now(self) -> Pair:
        """The run as it is."""
        return self.pairs[0]

    @property
    def no_float16(self) -> str:
        """Why float16 is not advised for this model; empty if it can be."""
        layer, activation = self.range.largest
        if not activation <= LARGEST:
            return f"an activation in {layer} is {number(activation)}, and float16 ends at {LARGEST:.0f}"
        if self.range.beyond:
            return f"{self.range.beyond} weights are beyond {LARGEST:.0f}, where float16 ends"
        if why := next((engine.failed for engine in self.engines if engine.dtype == FLOAT16 and engine.failed), ""):
            return f"the engine refuses it: {why}"
        lost = sum(pair.nonfinite for pair in self.pairs if pair.needs_float16)
        return f"{lost} logprobs in float16 are no numbers" if lost else ""

    def can_be_advised(self, pair: Pair) -> bool:
        """Whether a pair works: no float16 that overflows or is refused, no weights in float16, which GradScaler refuses."""
        works = not (pair.needs_float16 and self.no_float16) and pair.trainer.weights != FLOAT16
        return not pair.nonfinite and (works or pair == self.now)

    @property
    def best(self) -> Pair | None:
        """The cheapest pair within the target; of about equal costs the run as it is, else the cheapest of equal dtypes."""
        within = [pair for pair in self.pairs if self.can_be_advised(pair) and pair.mean_abs_delta <= self.target]
        cheapest = min((pair.cost for pair in within), default=0.0)
        near = [pair for pair in within if pair.cost <= _EQUAL_COSTS * cheapest]
        return min(near, key=lambda pair: (pair != self.now, not pair.is_equal, pair.cost), default=None)

    @property
    def edge(self) -> list[Pair]:
        """The pairs than which none is both cheaper and closer, from the cheapest on."""
        found: list[Pair] = []
        for pair in sorted(filter(self.can_be_advised, self.pairs), key=lambda pair: (pair.cost, pair.mean_abs_delta)):
            if not found or pair.mean_abs_delta < found[-1].mean_abs_delta:
                found.append(pair)
        return found

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        now, best = self.now, self.best
        if best is None:
            closest = min(filter(self.can_be_advised, self.pairs), key=lambda pair: pair.mean_abs_delta, default=now)
            return f"No pair is within {self.target:g} nats; {self._step(closest)}."
        if best == now:
            return f"Nothing to change: the run as it is leaves {now.mean_abs_delta:.2g} nats, within {self.target:g}."
        return f"{self._step(best)}."

    def _step(self, pair: Pair) -> str:
        now = self.now
        gain = f"{now.mean_abs_delta / pair.mean_abs_delta:.2g} times closer, " if pair.mean_abs_delta else ""
        return (
            f"{pair.name} ({pair.engine.settings}; {pair.trainer.settings}) leaves {pair.mean_abs_delta:.2g} nats where "
            f"{now.name} leaves {now.mean_abs_delta:.2g}: {gain}{METRICS['kl_k3'].label} {pair.kl_k3:.2g} instead of "
            f"{now.kl_k3:.2g}, at {pair.cost / now.cost:.2g} times the cost"
        )
