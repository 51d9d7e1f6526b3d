"""The lines that the hook logs for each start of an engine: four to ten, or one if nothing changes or the log is quiet."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from quirks_core.apply.receipt import Receipt
from quirks_core.base.text import listed, one_line
from quirks_core.declaration.flags import ModelFlag
from quirks_core.hook.explicit import Typed
from quirks_core.plan.formats import option_for
from quirks_core.plan.records import NoteKind, Plan, State, Status
from quirks_core.plan.summary import Summary, in_one_line, is_done

_LOGGER = logging.getLogger("model_quirks.hook")
#: Lines of a plan; with the one of the receipt they are ten. What is kept, refused or warned of is shown beyond that, too.
_MOST = 9
#: How the user supplies settings, and sees everything.
_SUPPLY, _SEE_ALL = "MODEL_QUIRKS_SET='slot=value;…' supplies a setting, ", "MODEL_QUIRKS=report lists everything"


class _Line(NamedTuple):
    """A line, whether it is shown however many there are, and whether it is advice."""

    text: str
    always: bool = False
    advised: bool = False


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


def log_plan(plan: Plan, typed: Typed, why: str, *, quiet: bool = False, only_reports: bool = False) -> None:
    """Logs what a plan does to an engine.

    Args:
        plan: The plan.
        typed: What the user typed.
        why: Why the run has its purpose.
        quiet: One line; a plan that changes nothing is one line in any case.
        only_reports: Nothing is put into force: refusals are lines, too, and no line is left out.
    """
    first = f"{'would apply' if only_reports else 'plan'} {plan.digest[:12]} to {plan.context.model.name}, purpose "
    first += f"{plan.context.purpose} ({why}); typed: {typed}"
    if quiet:
        summary = Summary.of(plan)
        ids = sorted({name for entry in summary.in_force for name in entry.quirks})
        changes = _counted(sum(is_done(plan, slot) for slot in plan.changes), "setting")
        patches = _counted(len(plan.patches), "patch", "patches")
        undecided = len({name for names in summary.undecided.values() for name in names})
        unexamined = sum(verdict.state is State.NOT_EXAMINED for verdict in plan.verdicts)
        others = f"; {len(summary.advised)} advised, {undecided} undecided" if summary.advised or undecided else ""
        others += f"; {unexamined} not examined" if unexamined else ""
        info(f"{first}; {changes}, {patches}: {', '.join(ids) or 'no quirk'}{others}")
        return
    # A value that leaves its argument to vLLM (--dtype auto) is no choice.
    left_open = plan.context.settings.keys() - plan.context.typed
    first += f": {', '.join(name for name in sorted(typed.names) if f'engine.{name}' not in left_open) or 'nothing'}"
    read = (f"{slot} = {plan.value(slot)} ({source})" for slot, source in _numerics(plan))
    first += f"; read: {text}" if (text := ", ".join(read)) else ""
    lines = list(lines_of(plan, _remedy(plan), only_reports=only_reports))
    # A report lists what is undecided; the log counts it.
    open_facts = [] if only_reports else _undecided(plan, _remedy(plan), only_reports=False)
    if not set(lines) - {*_plugins(plan), *open_facts, *_set_already(plan)}:
        info(f"{first}; {_unchanged(plan)}")
        return
    info(first)
    shown = lines if only_reports or len(lines) < _MOST else _folded(lines)
    for line in shown:
        info(f"  {line.text}")
    if left := len(lines) - len(shown):
        advised = sum(line.advised for line in lines) - sum(line.advised for line in shown)
        among = f" ({advised} advised)" if advised else ""
        info(f"  and {_counted(left, 'more line')}{among}, which MODEL_QUIRKS=report prints")


def _numerics(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields how the trainer computes, as far as nobody typed it, by slot with where it was read."""
    for slot in ("train.dtype", "train.trainable_dtype", "train.autocast", "train.head_dtype"):
        if slot in plan.context.sources:
            yield slot, plan.context.sources[slot]


def log_receipt(receipt: Receipt, slots: Collection[str]) -> None:
    """Logs where a plan is in force.

    Args:
        receipt: The receipt.
        slots: The slots whose values are shown.
    """
    where = ", ".join(f"{one.process} ({one.pid})" for one in receipt.processes)
    read = {slot: value for one in receipt.processes for slot, value in one.engine.items() if slot in slots}
    values = ", ".join(f"{slot} = {value}" for slot, value in sorted(read.items())) or "nothing to read back"
    patches = _counted(sum(effect.slot.startswith("patch.") for effect in receipt.processes[-1].effects), "patch", "patches")
    info(f"receipt: plan {receipt.digest[:12]} is in force in {where}: {patches}; read back: {values}")


def error(text: str) -> None:
    """Logs a line that must not be overlooked."""
    _log(logging.ERROR, text)


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _folded(lines: Sequence[_Line]) -> list[_Line]:
    """Returns the lines that are always shown, and as many of the others as there is room for, in their order."""
    room = max(_MOST - 2 - sum(line.always for line in lines), 0)
    others = [line for line in lines if not line.always][:room]
    return [line for line in lines if line.always or line in others]


def lines_of(plan: Plan, remedy: str, *, only_reports: bool = False) -> Iterator[_Line]:
    """Yields what a plan does: refusals in a report, what nothing enforces, what is in force, advised, undecided, the rest.

    Args:
        plan: The plan.
        remedy: How the user supplies facts, and how to see everything.
        only_reports: Nothing is put into force; what is undecided is one line for each missing fact.
    """
    if only_reports:
        for refusal in plan.refusals:
            yield _Line(f"would be refused: {refusal}", always=True)
    summary = Summary.of(plan)
    precision = {verdict.id for verdict in plan.active if verdict.flag == ModelFlag.DTYPE}  # what a run gains most from
    first = [entry for entry in summary.advised if not precision.isdisjoint(entry.quirks)]
    yield from (_Line(f"advised: {entry}", always=True, advised=True) for entry in first)
    yield from _plugins(plan)
    required = [entry for entry in summary.advised if entry.required]
    yield from (_Line(f"warning: nothing here enforces {entry}", always=True) for entry in required)
    yield from _in_force(plan, summary, each=only_reports)
    notes = [note for note in plan.notes if note.kind not in (NoteKind.ADVICE, NoteKind.PLUGIN)]
    yield from (_Line(f"warning: {note.text}", always=True) for note in notes)
    advised = [entry for entry in summary.advised if not entry.required and entry not in first]
    yield from (_Line(f"advised: {entry}", always=not entry.how, advised=True) for entry in advised)
    yield from _undecided(plan, remedy, only_reports=only_reports)
    for item in plan.adjustments:
        if item.status is Status.KEPT_USER and is_done(plan, item.slot):
            who = ", ".join(quirk.id for quirk in item.quirks)
            yield _Line(f"kept: {item.reason}: {item.wanted} ({who})", always=True)
    yield from _set_already(plan)


def _in_force(plan: Plan, summary: Summary, *, each: bool) -> Iterator[_Line]:
    """Yields a line for each setting, because users compare it with theirs, and one for all patches."""
    entries, number = summary.in_force, len(plan.patches)
    shown = entries if each or number < 2 else entries[:-number]
    yield from (_Line(f"in force: {entry}") for entry in shown)
    if len(shown) < len(entries):
        ids = dict.fromkeys(patch.quirk.id for patch in plan.patches)
        yield _Line(f"in force: {number} patches: {', '.join(ids)} ('quirks explain ID --model …' has the reason)", always=True)


def _plugins(plan: Plan) -> Iterator[_Line]:
    """Yields a warning for each plugin that was not loaded."""
    for note in plan.notes:
        if note.kind is NoteKind.PLUGIN:
            yield _Line(f"warning: {note.text}", always=True)


def _set_already(plan: Plan) -> Iterator[_Line]:
    for item in plan.adjustments:
        if item.status is Status.ALREADY_SET and is_done(plan, item.slot):
            yield _Line(f"set already: {item.wanted} ({', '.join(quirk.id for quirk in item.quirks)})")


def _unchanged(plan: Plan) -> str:
    """Returns, for a plan that changes nothing, what was checked and what is not known; without the latter, an all-clear."""
    off = [verdict.id for verdict in plan.verdicts if verdict.state is State.DISABLED]
    rest = [f"switched off: {listed(off)}"] if off else []
    rest += [line.text for line in (*_plugins(plan), *_undecided(plan, _remedy(plan), only_reports=False))]
    where = (
        f"vLLM {plan.context.packages.get('vllm', 'of an unknown version')} on {plan.context.platform or 'an unknown platform'}"
    )
    checked = f"{_counted(len(plan.verdicts) - len(off), 'quirk')} for {where}, none changes anything"
    checked += "".join(f"; {line.text}" for line in _set_already(plan))
    return "; ".join([f"{'no change' if rest else 'all clear'}, checked: {checked}", *rest])


def _remedy(plan: Plan) -> str:
    """Returns how the user supplies what is missing, as far as it is a setting, and sees everything."""
    return (_SUPPLY if any(option_for(fact).startswith("--set") for fact in plan.undecided) else "") + _SEE_ALL


def _undecided(plan: Plan, remedy: str, *, only_reports: bool) -> Iterator[_Line]:
    """Yields one line for all that is undecided; in a report, one for each missing fact."""
    if only_reports:
        yield from (_Line(f"undecided without {fact}: {', '.join(quirks)}") for fact, quirks in plan.undecided.items())
    elif text := in_one_line(plan.undecided, remedy):
        yield _Line(text, always=True)
