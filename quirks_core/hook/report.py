"""The lines that the hook logs for each start of an engine: four to ten, or one if nothing changes or the log is quiet."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from quirks_core.base.text import listed, one_line
from quirks_core.declaration.flags import ModelFlag
from quirks_core.hook.explicit import Typed
from quirks_core.plan.formats import is_setting
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import NoteKind, Plan, State, Status
from quirks_core.plan.summary import ADVISED, IN_FORCE, Entry, Summary, in_one_line, is_done, rows

_LOGGER = logging.getLogger("model_quirks.hook")
#: Lines of a plan; with the one of the receipt they are ten. What is kept, refused or warned of is shown beyond that, too.
_MOST = 9
#: How the user supplies settings, and sees everything.
_SUPPLY, _SEE_ALL = "MODEL_QUIRKS_SET='slot=value;…' supplies a setting, ", "MODEL_QUIRKS=report lists everything"


#: How the trainer computes, as far as nobody typed it.
_NUMERICS = ("train.dtype", "train.trainable_dtype", "train.autocast", "train.head_dtype")


#: What a row's group is called in the log, in the order of the lines.
_WORDS = {IN_FORCE: "in force", ADVISED: "advised", Status.KEPT_USER: "kept", Status.ALREADY_SET: "set already"}
_ENFORCED_BY_NOBODY = 1  # a rank


class _Line(NamedTuple):
    """A line, whether it is shown however many there are, and whether it is about a change."""

    text: str
    always: bool = False
    is_change: bool = True


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
        info(f"{first}; {_in_short(plan)}")
        return
    # A value that leaves its argument to vLLM (--dtype auto) is no choice.
    left_open = plan.context.settings.keys() - plan.context.typed
    first += f": {', '.join(name for name in sorted(typed.names) if f'engine.{name}' not in left_open) or 'nothing'}"
    read = [f"{slot} = {plan.value(slot)} ({where})" for slot in _NUMERICS if (where := plan.context.sources.get(slot))]
    first += f"; read: {', '.join(read)}" if read else ""
    lines = list(lines_of(plan, _remedy(plan), only_reports=only_reports))
    if not any(line.is_change for line in lines):
        info(f"{first}; {_unchanged(plan, lines)}")
        return
    info(first)
    room = len(lines) if only_reports or len(lines) < _MOST else _MOST - 2 - sum(line.always for line in lines)
    others = [line for line in lines if not line.always][: max(room, 0)]
    shown = [line for line in lines if line.always or line in others]
    for line in shown:
        info(f"  {line.text}")
    if left := len(lines) - len(shown):
        info(f"  and {_counted(left, 'more line')}, which MODEL_QUIRKS=report prints")


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


def lines_of(plan: Plan, remedy: str, *, only_reports: bool = False) -> Iterator[_Line]:
    """Yields what a plan does: refusals in a report, warnings, what nothing enforces, what is in force, advised, undecided.

    Args:
        plan: The plan.
        remedy: How the user supplies facts, and how to see everything.
        only_reports: Nothing is put into force; what is undecided is one line for each missing fact, and each patch has a line.
    """
    if only_reports:
        yield from (_Line(f"would be refused: {refusal}", always=True) for refusal in plan.refusals)
    notes = [note for note in plan.notes if note.kind is not NoteKind.ADVICE]
    for note in sorted(notes, key=lambda one: one.kind is not NoteKind.PLUGIN):
        yield _Line(f"warning: {note.text}", always=True, is_change=note.kind is not NoteKind.PLUGIN)
    precision = {verdict.id for verdict in plan.active if verdict.flag == ModelFlag.DTYPE}  # what a run gains most from
    found = [(_rank(row, precision), row) for row in rows(plan) if row.group in _WORDS]
    for rank, row in sorted(found, key=lambda pair: pair[0]):
        if row.group == ADVISED:
            text = f"warning: nothing here enforces {row}" if rank == _ENFORCED_BY_NOBODY else f"advised: {row}"
            yield _Line(text, always=rank <= _ENFORCED_BY_NOBODY or not row.how)
        elif row.slot and is_done(plan, row.slot):
            yield _Line(f"{_WORDS[row.group]}: {row}", row.group == Status.KEPT_USER, row.group != Status.ALREADY_SET)
        elif not row.slot and (only_reports or len(plan.patches) == 1):
            yield _Line(f"in force: {row}")
    if len(plan.patches) > 1 and not only_reports:  # settings have a line each, because users compare them with theirs
        ids = ", ".join(dict.fromkeys(patch.quirk.id for patch in plan.patches))
        yield _Line(f"in force: {len(plan.patches)} patches: {ids} ('quirks explain ID --model …' has the reason)", always=True)
    if only_reports:
        yield from (_Line(f"undecided without {fact}: {', '.join(quirks)}") for fact, quirks in plan.undecided.items())
    elif text := in_one_line(plan.undecided, remedy):
        yield _Line(text, always=True, is_change=False)


def _rank(row: Entry, precision: set[str]) -> int:
    """Advice on precision comes first, then what correctness requires of others, then the groups."""
    if row.group == ADVISED and not precision.isdisjoint(row.quirks):
        return 0
    return _ENFORCED_BY_NOBODY if row.required else _ENFORCED_BY_NOBODY + 1 + list(_WORDS).index(row.group)


def _in_short(plan: Plan) -> str:
    summary = Summary.of(plan)
    ids = sorted({name for entry in summary.in_force for name in entry.quirks})
    changes = _counted(sum(is_done(plan, slot) for slot in plan.changes), "setting")
    undecided = len({name for names in summary.undecided.values() for name in names})
    unexamined = sum(verdict.state is State.NOT_EXAMINED for verdict in plan.verdicts)
    others = f"; {len(summary.advised)} advised, {undecided} undecided" if summary.advised or undecided else ""
    others += f"; {unexamined} not examined" if unexamined else ""
    return f"{changes}, {_counted(len(plan.patches), 'patch', 'patches')}: {', '.join(ids) or 'no quirk'}{others}"


def _unchanged(plan: Plan, lines: Iterable[_Line]) -> str:
    """Returns, for a plan that changes nothing, what was checked and what is not known; without the latter, an all-clear."""
    off = [verdict.id for verdict in plan.verdicts if verdict.state is State.DISABLED]
    rest = [*([f"switched off: {listed(off)}"] if off else []), *(line.text for line in lines if line.always)]
    context = plan.context
    where = f"vLLM {context.packages.get('vllm', 'of an unknown version')} on {context.platform or 'an unknown platform'}"
    checked = f"{_counted(len(plan.verdicts) - len(off), 'quirk')} for {where}, none changes anything"
    checked += "".join(f"; {line.text}" for line in lines if not line.always)
    return "; ".join([f"{'no change' if rest else 'all clear'}, checked: {checked}", *rest])


def _remedy(plan: Plan) -> str:
    """Returns how the user supplies what is missing, as far as it is a setting, and sees everything."""
    return (_SUPPLY if any(map(is_setting, plan.undecided)) else "") + _SEE_ALL


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"
