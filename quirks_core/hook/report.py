"""The lines that the hook logs for each start of an engine, in the words of `quirks plan`; one if nothing changes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace

from quirks_core.base.text import listed, one_line
from quirks_core.hook.explicit import Typed
from quirks_core.plan.formats import is_setting
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import Plan, State
from quirks_core.plan.summary import Summary, is_done
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.plan import HEADINGS, MOST, NUMERICS, Ways, findings, run

_LOGGER = logging.getLogger("model_quirks.hook")
#: Levels of what is no change of an engine.
_NO_CHANGE = ("undecided", "warning")


class _Fallback(logging.Handler):
    """Writes to standard error what no other handler takes.

    A package that vLLM's server imports (model_hosting_container_standards) has the root logger's handlers drop all that is no
    error; verl sets up logging before that.
    """

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            others = (one for one in logger.handlers if one is not self and not isinstance(one, logging.NullHandler))
            if any(one.level <= record.levelno for one in others):
                return
            logger = logger.parent if logger.propagate else None
        print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201


_FALLBACK = _Fallback()


def info(text: str) -> None:
    """Logs one line; to standard error where no handler takes it."""
    _log(logging.INFO, text)


def _log(level: int, text: str) -> None:
    logging.getLogger("model_quirks").addHandler(_FALLBACK)  # the quirks' own warnings as well
    if not _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.setLevel(logging.INFO)
    _LOGGER.log(level, "model-quirks: %s", one_line(text))


def _supply(facts: Iterable[str]) -> str:
    settings = [f"{fact}=…" for fact in facts if is_setting(fact)]
    more = f" and {len(settings) - MOST} more" if len(settings) > MOST else ""
    return f"MODEL_QUIRKS_SET='{';'.join(settings[:MOST])}'{more}" if settings else ""


_WAYS = Ways(_supply, "MODEL_QUIRKS=report lists them")


def log_plan(plan: Plan, typed: Typed, why: str, *, quiet: bool = False, only_reports: bool = False) -> None:
    """Logs what a plan does to an engine, and why the run has its purpose.

    A quiet log is one line, as is a plan that changes nothing. With `only_reports`, nothing is put into force: refusals are
    lines, too, and every row has one.
    """
    first = f"{'would apply to ' if only_reports else ''}{run(plan, why=why)}"
    if quiet:
        info(f"{first}; {_in_short(plan)}")
        return
    # A value that leaves its argument to vLLM (--dtype auto) is no choice.
    left_open = plan.context.settings.keys() - plan.context.typed
    names = ", ".join(name for name in sorted(typed.names) if f"engine.{name}" not in left_open) or "nothing"
    how = "you set" if typed.exact else "set other than vLLM's defaults"
    first += f"; {how}: {names}"
    read = [f"{slot} = {plan.value(slot)} ({where})" for slot in NUMERICS if (where := plan.context.sources.get(slot))]
    first += f"; read: {', '.join(read)}" if read else ""
    found = list(findings(plan, _WAYS))
    if all(one.level in _NO_CHANGE for one in found):
        info(f"{first}; {_unchanged(plan, found)}")
        return
    info(first)
    for one in findings(plan, _WAYS, whole=True) if only_reports else found:
        # A list has this as its heading.
        info(f"  {one if only_reports or one.level not in HEADINGS else replace(one, message=f'without it: {one.message}')}")


def log_receipt(receipt: Receipt, slots: Collection[str]) -> None:
    """Logs where a plan is in force."""
    where = ", ".join(f"{one.process} ({one.pid})" for one in receipt.processes)
    read = {slot: value for one in receipt.processes for slot, value in one.engine.items() if slot in slots}
    values = "".join(f", {slot} = {value}" for slot, value in sorted(read.items()))
    patches = _counted(sum(effect.slot.startswith("patch.") for effect in receipt.processes[-1].effects), "patch", "patches")
    info(f"receipt: plan {receipt.digest[:12]} is in force in {where}: {patches}{values}")


def error(text: str) -> None:
    """Logs a line that must not be overlooked."""
    _log(logging.ERROR, text)


def _in_short(plan: Plan) -> str:
    summary = Summary.of(plan)
    ids = sorted({name for entry in summary.in_force for name in entry.quirks})
    changes = _counted(sum(is_done(plan, slot) for slot in plan.changes), "setting")
    undecided = len({name for names in summary.undecided.values() for name in names})
    unexamined = sum(verdict.state is State.NOT_EXAMINED for verdict in plan.verdicts)
    others = f"; {len(summary.advised)} advised, {undecided} undecided" if summary.advised or undecided else ""
    others += f"; {unexamined} not examined" if unexamined else ""
    return f"{changes}, {_counted(len(plan.patches), 'patch', 'patches')}: {', '.join(ids) or 'no quirk'}{others}"


def _unchanged(plan: Plan, found: Iterable[Finding]) -> str:
    """Returns, for a plan that changes nothing, what was checked and what is not known; without the latter, an all-clear."""
    off = [verdict.id for verdict in plan.verdicts if verdict.state is State.DISABLED]
    rest = [*([f"switched off: {listed(off)}"] if off else []), *map(str, found)]
    context = plan.context
    where = f"vLLM {context.packages.get('vllm', 'of an unknown version')} on {context.platform or 'an unknown platform'}"
    checked = f"{_counted(len(plan.verdicts) - len(off), 'quirk')} for {where}, none changes anything"
    return "; ".join([f"{'no change' if rest else 'all clear'}, checked: {checked}", *rest])


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"
