"""Whether an engine may generate: whose weights it holds, and whether it is awake."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum, auto

from quirks_core.plan.records import Plan
from worker.errors import NotReadyError, RefitError

#: What an engine can give back while it sleeps, in the engine's words.
WEIGHTS, KV_CACHE = "weights", "kv_cache"
#: The version before the first refit; vLLM calls it so as well.
FIRST_VERSION = "default"
#: Why an engine must not generate before its first refit.
FROM_DUMMY = (
    "the engine started from dummy weights (engine.load_format) and has not been refitted; refit before generating, or set "
    "engine.generate_from_dummy: true for a benchmark of speed"
)


class Held(StrEnum):
    """Which weights an engine holds."""

    WHOLE = auto()  #: those of the checkpoint, or of one refit
    DUMMY = auto()  #: random values, until the first refit
    BROKEN = auto()  #: of no policy: a refit failed half-way, a deep sleep dropped them, or the engine is gone


class Readiness:
    """The state of one engine's weights and memory.

    Attributes:
        held: Which weights it holds; it may generate from whole ones alone.
        version: Label of the weights; `FIRST_VERSION` before the first refit.
    """

    def __init__(self, problem: str | None = None) -> None:
        """An engine that is awake; `problem` is why it must not generate before its first complete refit (`start_problem`)."""
        self.held = Held.WHOLE if problem is None else Held.DUMMY
        self.version = FIRST_VERSION
        self._refits = 0
        self._problem = problem
        self._asleep: frozenset[str] = frozenset()

    @property
    def problem(self) -> str | None:
        """Why no tokens may be generated now; None if they may."""
        if self._problem is not None:
            return self._problem
        return f"the engine sleeps ({', '.join(sorted(self._asleep))}); call wake_up_async first" if self._asleep else None

    @property
    def asleep(self) -> bool:
        """Whether some of the engine's memory is given back."""
        return bool(self._asleep)

    def check(self) -> None:
        """Makes sure that tokens may be generated.

        Raises:
            NotReadyError: They may not; the message says why and what to do.
        """
        if (problem := self.problem) is not None:
            raise NotReadyError(problem)

    def check_refit(self) -> None:
        """Makes sure that there is memory for weights.

        Raises:
            RefitError: They sleep.
        """
        if WEIGHTS in self._asleep:
            raise RefitError("the weights sleep; call wake_up_async(tags=['weights']) before a refit")

    def next_version(self) -> str:
        """Returns a label for a refit that the trainer gave none."""
        return str(self._refits + 1)

    def refitted(self, version: str) -> None:
        """All weights are those of one policy."""
        self.version = version
        self._refits += 1
        self.held, self._problem = Held.WHOLE, None

    def broken(self, why: str) -> None:
        """No tokens until a complete refit."""
        self.held, self._problem = Held.BROKEN, why

    def slept(self, level: int) -> None:
        """The engine gave its memory back; at level 2 without a copy of the weights."""
        self._asleep = frozenset((WEIGHTS, KV_CACHE))
        if level > 1:
            self.broken("the engine slept at level 2, which keeps no weights; refit before generating")

    def woke(self, tags: Collection[str] | None) -> None:
        """Memory is back; all of it if no tags are given."""
        self._asleep = frozenset() if tags is None else self._asleep - frozenset(tags)


def start_problem(plan: Plan) -> str | None:
    """Returns why an engine with this plan must not generate before its first complete refit; None if it may."""
    dummy = plan.value("engine.load_format") == "dummy" and not plan.value("engine.generate_from_dummy")
    return FROM_DUMMY if dummy else None
