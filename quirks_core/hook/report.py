"""The lines that the hook logs: at most ten for each start of an engine, one if MODEL_QUIRKS_LOG is quiet."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from quirks_core.advice import advice
from quirks_core.hook.receipts import EngineReceipt
from quirks_core.hook.typed import Typed
from quirks_core.plan import Plan, Status
from quirks_core.slots import is_enforced
from quirks_core.text import one_line

_LOGGER = logging.getLogger("model_quirks.hook")
#: Lines of a plan; with the one of the receipt they are ten.
_MOST = 9
_UNDECIDED = "cannot be decided"
#: How warnings about plugins begin.
_PLUGIN = "plugin "


def say(text: str, *, level: int = logging.INFO) -> None:
    """Logs one line; to standard error where nobody has set up logging."""
    if not _LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        _LOGGER.addHandler(handler)
    if not _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.setLevel(logging.INFO)
    _LOGGER.log(level, "model-quirks: %s", one_line(text))


def say_plan(plan: Plan, typed: Typed, why: str, *, quiet: bool = False, only_reports: bool = False) -> None:
    """Logs what a plan does to an engine.

    Args:
        plan: The plan.
        typed: What the user typed.
        why: Why the run has its purpose.
        quiet: One line.
        only_reports: Nothing is put into force: refusals are lines, too, and no line is left out.
    """
    first = f"{'would apply' if only_reports else 'plan'} {plan.digest[:12]} to {plan.context.model.name}, purpose "
    first += f"{plan.context.purpose} ({why}); typed: {typed}"
    changes = sum(map(is_enforced, plan.changes))
    if quiet:
        ids = sorted(
            {quirk.id for item in plan.adjustments for quirk in item.quirks} | {patch.quirk.id for patch in plan.patches}
        )
        say(f"{first}; {changes} settings, {len(plan.patches)} patches: {', '.join(ids) or 'no quirk concerns it'}")
        return
    say(f"{first}: {', '.join(sorted(typed.names)) or 'nothing'}")
    lines = list(_lines(plan, only_reports=only_reports))
    if not lines:
        lines = ["no quirk concerns this run"]
    for text in lines if only_reports or len(lines) < _MOST else lines[: _MOST - 2]:
        say(f"  {text}")
    if not only_reports and len(lines) >= _MOST:
        say(f"  and {len(lines) - _MOST + 2} more lines, which MODEL_QUIRKS=report prints")


def say_receipt(receipt: EngineReceipt) -> None:
    """Logs where a plan is in force."""
    where = ", ".join(f"{one.process} ({one.pid})" for one in receipt.processes)
    read = {slot: value for one in receipt.processes for slot, value in one.engine.items() if slot in receipt.changes}
    values = ", ".join(f"{slot} = {value}" for slot, value in sorted(read.items())) or "nothing to read back"
    patches = sum(effect.slot.startswith("patch.") for effect in receipt.processes[-1].effects)
    say(f"receipt: plan {receipt.digest[:12]} is in force in {where}: {patches} patches; read back: {values}")


def loud(text: str) -> None:
    """Logs a line that must not be overlooked."""
    say(text, level=logging.ERROR)


def _lines(plan: Plan, *, only_reports: bool) -> Iterator[str]:
    """Yields what cannot be cut off first: refusals, warnings about plugins, requirements that nothing here enforces."""
    if only_reports:
        for refusal in plan.refusals:
            yield f"would be refused: {refusal}"
    undecided, others = _sorted_warnings(plan)
    plugins = [text for text in others if text.startswith(_PLUGIN)]
    yield from (f"warning: {text}" for text in plugins)
    advised = [text for _, text in advice(plan)]
    yield from (text for text in advised if text.startswith("warning"))
    for item in plan.adjustments:
        if item.status is Status.APPLIED and is_enforced(item.slot):
            yield f"{item.wanted} ({', '.join(quirk.id for quirk in item.quirks)}: {item.quirks[0].reason})"
    for patch in plan.patches:
        yield f"patch {patch.target.rpartition(':')[2]} ({patch.quirk.id}: {patch.quirk.reason})"
    yield from (f"warning: {text}" for text in others if text not in plugins)
    if undecided:
        yield undecided
    yield from (text for text in advised if not text.startswith("warning"))
    for item in plan.adjustments:
        if item.status is Status.KEPT_USER and is_enforced(item.slot):
            yield f"kept: {item.reason}: {item.wanted} ({', '.join(quirk.id for quirk in item.quirks)})"
        elif item.status is Status.ALREADY_SET and is_enforced(item.slot):
            yield f"set already: {item.wanted} ({', '.join(quirk.id for quirk in item.quirks)})"


def _sorted_warnings(plan: Plan) -> tuple[str, Sequence[str]]:
    """Puts what cannot be decided for want of the trainer's facts into one line; the other warnings follow one by one."""
    facts: set[str] = set()
    quirks: set[str] = set()
    others = []
    for text in plan.warnings:
        untold = {slot for slot in plan.context.untold if slot in text} if _UNDECIDED in text else set()
        if not untold:
            others.append(text)
        facts |= untold
        quirks |= {text.partition(":")[0].partition(" ")[0]} if untold else set()
    if not facts:
        return "", others
    line = f"not decided: {', '.join(sorted(quirks))}; nobody said {', '.join(sorted(facts))} (MODEL_QUIRKS_SET='slot=value;…')"
    return line, others
