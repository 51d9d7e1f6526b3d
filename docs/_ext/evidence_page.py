"""The page of evidence: the table that `quirks prove` wrote, a line for each quirk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packaging.version import Version

from quirks_core.declaration.flags import Kind
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.plan.loaded import Loaded
from worker.lab.kit import evidence_table as evidence
from worker.lab.kit.evidence_table import Proved

_HEAD = """\
A paired run is the same scenario with the quirk forced and with it disabled, each in a process of its own. It speaks for a
quirk if it passes with it and fails without it: the workaround is *needed*, the rule or feature *holds*. What was run on one
platform, model runner (`v1`, `v2`) or mode (eager, CUDA graphs) proves nothing for another; engines on CPUs are eager. A static
probe reads the source of the installed vLLM; where both speak, the run counts.

Each cell has the versions of vLLM by place; *a to b* are all recorded ones between. What the runs saw is on each quirk's page,
and in [the table that ships](../../quirks_plugins/evidence.csv), with dates, versions, devices and digests of what was run. A
quirk without a line names neither a paired run nor a probe, or concerns no platform that was tried.

Proofs were made for vLLM on {places}."""
_COLUMNS = ("quirk", "run: for it", "run: against it", "source alone: for it", "source alone: against it", "undecided")


def blocks(loaded: Sequence[Loaded]) -> list[str]:
    """Returns the page's blocks.

    Args:
        loaded: The quirks that have a line if anything was recorded of them.
    """
    proved = {item.quirk.id: evidence.proved(item.quirk) for item in loaded}
    every = [one for rows in proved.values() for one in rows]
    everywhere = [one.model_copy(update={"runner": "", "by": evidence.PROBE}) for one in every]
    found = [_HEAD.format(places=_places(everywhere, every))]
    for title, kinds in (("Workarounds", (Kind.WORKAROUND,)), ("Rules and features", (Kind.RULE, Kind.FEATURE))):
        quirks = [item.quirk for item in loaded if item.quirk.kind in kinds and proved[item.quirk.id]]
        rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_line(quirk, proved[quirk.id], every) for quirk in quirks)]
        found += [f"## {title}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return found


def _line(quirk: Quirk, rows: Sequence[Proved], every: Iterable[Proved]) -> tuple[str, ...]:
    kinds = [(evidence.RUN, True), (evidence.RUN, False), (evidence.PROBE, True), (evidence.PROBE, False)]
    cells = [_places([row for row in rows if (row.by, row.decided) == kind], every) for kind in kinds]
    undecided = [row for row in rows if row.decided is None and not _is_other(quirk, row.vllm)]
    return f"`{quirk.id}`", *cells, _places(undecided, every)


def _is_other(quirk: Quirk, vllm: str) -> bool:
    """The quirk says that a version of vLLM is not affected: there a run without a result leaves nothing undecided."""
    answers = {affected.answer(vllm) for affected in quirk.affected if affected.package == "vllm"}
    return answers == {Answer.NO} and quirk.is_examined("vllm", vllm)


def _places(rows: Iterable[Proved], every: Iterable[Proved]) -> str:
    """The versions of vLLM by place; neighbours among all recorded versions of the platform are joined."""
    versions: dict[str, set[str]] = {}
    for row in rows:
        runner = row.runner if row.by == evidence.RUN else ""  # the source is the same for both
        versions.setdefault(" ".join(filter(None, (row.platform, runner, row.mode))), set()).add(row.vllm)
    return "; ".join(
        f"{place} {_joined(found, sorted({row.vllm for row in every if row.platform == place.partition(' ')[0]}, key=Version))}"
        for place, found in sorted(versions.items())
    )


def _joined(found: Iterable[str], known: Sequence[str]) -> str:
    groups: list[list[str]] = []
    for version in sorted(found, key=Version):
        if groups and known.index(version) == known.index(groups[-1][-1]) + 1:
            groups[-1].append(version)
        else:
            groups.append([version])
    return ", ".join(group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}" for group in groups)
