"""What the pages say of a quirk by its declaration and its recorded evidence alone, the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from quirks_core.configuration.slots import slot_named
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.match import Condition, Match
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import Installation
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plan import evaluate
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import State
from quirks_core.plan.resolve import resolve
from quirks_core.plan.summary import Summary
from worker.lab.kit import evidence_table as evidence

#: The versions of vLLM that the pages speak of, oldest first: some below the floor, where many rules come from, and the
#: supported ones. A fixed list, so that the pages are the same on every machine.
ENGINES = ("0.9.0", "0.11.0", "0.26.0", "0.30.0", "0.32.0", "0.33.0")
#: What those signs mean.
_SIGNS = {Answer.YES: "●", Answer.NO: "○", Answer.UNKNOWN: "?"}
_UNEXAMINED = "·"
LEGEND = (
    f"● it concerns some run on that version, ○ none, {_UNEXAMINED} not examined, ? it depends on another package. The newest "
    f"vLLM whose source was read is {ENGINES[-1]}."
)
#: What a range says of versions that were not examined.
_KNOWN = re.compile(r" ?\(examined from [\d.]+ on\)|; vllm: examined from [\d.]+ on")


class _Known:
    """Facts that hold for every run of a kind; all others are unknown."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def fact(self, name: str) -> object:
        """Returns a fact."""
        return self._facts.get(name, UNKNOWN)


def affects(quirk: Quirk, version: str, facts: Mapping[str, Any] | None = None) -> Answer:
    """Returns whether a quirk can concern runs on a version of vLLM, by its declaration alone.

    Args:
        quirk: The quirk.
        version: The version of vLLM.
        facts: What else is known of the runs.

    Returns:
        No if no run on that version is affected; unknown if that depends on another package's version.
    """
    known = _Known({"packages.vllm": version, **(facts or {})})
    if quirk.match.trace(known).answer is Answer.NO:
        return Answer.NO
    answers = []
    for package in {affected.package for affected in quirk.affected}:
        ranges = [affected for affected in quirk.affected if affected.package == package]
        found = {affected.answer(version if package == "vllm" else None) for affected in ranges}
        answers.append(next(answer for answer in (Answer.YES, Answer.UNKNOWN, Answer.NO) if answer in found))
    return next((answer for answer in (Answer.NO, Answer.UNKNOWN) if answer in answers), Answer.YES)


def sign(quirk: Quirk, version: str) -> str:
    """Returns the sign of `affects`."""
    return _SIGNS[affects(quirk, version)] if quirk.is_examined("vllm", version) else _UNEXAMINED


def acts_alone(item: Loaded) -> bool:
    """Returns whether a quirk does more than advise in some run that engine arguments and variables alone describe.

    The runs are those of its examples in which the user sets engine arguments and environment variables alone: another program
    starts the engine, with ``MODEL_QUIRKS=on``, and says nothing of its trainer.
    """
    concerned = (one for one in item.quirk.examples if one.answer is Answer.YES)
    of_engines = (one for one in concerned if all(slot_named(slot).is_enforced for slot in (*one.settings, *one.defaults)))
    plans = (resolve(one.context(), [item]) for one in of_engines)
    return any(plan.refusals or Summary.of(plan).in_force for plan in plans)


def models(quirk: Quirk) -> list[str]:
    """Names the models that a quirk can concern; nothing if it can be any."""
    if types := quirk.match.model_types():
        return sorted(types)
    found = []
    for condition in _conditions(quirk.match):
        match condition.name:
            case "model.is_moe":
                found.append("any MoE" if condition.operator == "is_true" else "any dense")
            case "model.is_multimodal":
                found.append("any multimodal")
            case "model.name":
                found.append(f"any if {condition.words.holds}" if condition.words else f"any named {condition.operand}")
    return found


def _conditions(match: Match) -> Iterator[Condition]:
    if isinstance(match, Condition):
        yield match
    for part in getattr(match, "parts", (getattr(match, "part", None),)):
        if part is not None:
            yield from _conditions(part)


def stage(item: Loaded) -> str:
    """A quirk's stage on the newest engine, by its declaration alone."""
    is_fixed = evaluate.affected(Installation({"vllm": ENGINES[-1]}), item.quirk).answer is Answer.NO
    return State.DORMANT if is_fixed else State.ACTIVE


def versions(quirk: Quirk) -> str:
    """The versions that it concerns, short enough for a table; empty if it is every one."""
    text = _KNOWN.sub("", quirk.versions).replace("vllm ", "").replace(">= ", "≥").replace("< ", "<").replace(", ", " ")
    return "" if text.startswith(("every", "vllm:")) else text


def proven(quirk: Quirk) -> str:
    """The newest vLLM on each platform on which a paired run spoke for the quirk; else what there is instead."""
    newest: dict[str, Version] = {}
    for item in evidence.proved(quirk):
        if item.decided and item.by == evidence.RUN:
            newest[item.platform] = max(newest.get(item.platform, Version("0")), Version(item.vllm))
    if newest:
        return "<br>".join(f"{platform} {version}" for platform, version in sorted(newest.items()))
    return "source" if quirk.probes else "run to come" if quirk.paired_runs else "declared"


def kinds(loaded: Sequence[Loaded], kind: Kind) -> list[Loaded]:
    """Returns the quirks of a kind."""
    return [item for item in loaded if item.quirk.kind is kind]
