"""The page of evidence: every ``docs/evidence*.json`` that `quirks prove` wrote, as a table of quirks and installations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from quirks_core.declaration.flags import Kind
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.plan.loaded import Loaded
from worker.lab.kit import proof
from worker.lab.kit.proof import Conclusion, Finding, Proof, Report

#: The files that are on the page.
FILES = "evidence*.json"
_NOT_RECORDED = "not recorded"
#: What a cell says of a paired run, and of the source alone.
_BY_RUN = {
    Conclusion.NEEDED: "**needed**",
    Conclusion.NOT_NEEDED: "not needed",
    Conclusion.HOLDS: "**holds**",
    Conclusion.DOES_NOT_HOLD: "does not hold",
    Conclusion.INCONCLUSIVE: "undecided",
}
_BY_SOURCE = {
    Conclusion.NEEDED: "source: needed",
    Conclusion.NOT_NEEDED: "source: fixed",
    Conclusion.HOLDS: "source: holds",
    Conclusion.DOES_NOT_HOLD: "source: does not hold",
    Conclusion.INCONCLUSIVE: "",
}
_ELSEWHERE = "n/a"
_OTHER_VERSION = "source: not affected"
_LEGEND = """\
A paired run is the same scenario with the quirk forced and with it disabled, each in a process of its own. A column is an
installation, one of vLLM's two model runners, and a mode: eager, or vLLM's defaults, which on a GPU are CUDA graphs. What was
run on one runner or in one mode proves nothing for the other.

| cell | meaning |
|---|---|
| **needed** | by a paired run: the scenario passes with the quirk and fails without it |
| **holds** | the same of a rule or a feature, which cures no defect |
| not needed, does not hold | by a paired run: the scenario passes without the quirk, too |
| undecided | a paired run came to no result, and the source settles nothing; the reason is below |
| source: … | no run decided it there, but a static probe of the source; *not affected*: as the quirk says of that version |
| n/a | no run on that installation concerns the quirk (another platform, or kind of CPU) |
| empty | nobody looked |"""


@dataclass(frozen=True, slots=True)
class Installation:
    """What evidence holds for: a version of vLLM, a platform, a kind of device, a model runner, and a mode."""

    vllm: str
    platform: str
    device: str
    runner: str
    mode: str

    @property
    def order(self) -> tuple[object, ...]:
        """The newest version first."""
        return (tuple(-part for part in Version(self.vllm).release), self.platform, self.device, self.runner, self.mode)

    @property
    def heading(self) -> str:
        """The installation in the lines of a table's heading."""
        return f"vLLM {self.vllm}<br>{self.platform}, {self.device}<br>runner {self.runner}, {self.mode}"

    def __str__(self) -> str:
        return f"vLLM {self.vllm}, {self.platform} ({self.device}), runner {self.runner}, {self.mode}"


def blocks(folder: Path, loaded: Sequence[Loaded]) -> list[str]:
    """Returns the page's blocks.

    Args:
        folder: Where the files are.
        loaded: The quirks that have a row, whether there is evidence of them or not.
    """
    reports = [Report.read(file) for file in sorted(folder.glob(FILES))]
    proofs = _by_installation(reports)
    found = [_LEGEND]
    for title, kinds in (("Workarounds", (Kind.WORKAROUND,)), ("Rules and features", (Kind.RULE, Kind.FEATURE))):
        found += [f"## {title}", _table(proofs, [item for item in loaded if item.quirk.kind in kinds])]
    found += ["## Installations", *(_installation(report) for report in reports), "## What was seen"]
    for item in loaded:
        found += _seen(item, proofs)
    return found


def _by_installation(reports: Sequence[Report]) -> Mapping[Installation, Mapping[str, Proof]]:
    """The proofs by installation and quirk; of several of one quirk, the newest."""
    found: dict[Installation, dict[str, Proof]] = {}
    for report in reports:
        places = {_installation_of(report, one, one.runner) for one in report.proofs if one.runner}
        for one in report.proofs:
            mine = [_installation_of(report, one, one.runner or _NOT_RECORDED)]
            # What the source says, and a run without an engine, holds for either runner.
            for place in mine if one.runner else [place for place in places if place.device == mine[0].device] or mine:
                kept = found.setdefault(place, {})
                if one.id not in kept or kept[one.id].date <= one.date:
                    kept[one.id] = one
    return {place: found[place] for place in sorted(found, key=lambda place: place.order)}


def _installation_of(report: Report, one: Proof, runner: str) -> Installation:
    return Installation(
        vllm=one.depends.get("vllm", report.versions.get("vllm", "0")),
        platform=one.depends.get("platform", report.platform or "unknown"),
        device=one.depends.get("device") or report.machine.rpartition(" ")[2],
        runner=runner,
        mode=("eager", "CUDA graphs")[one.graphs],
    )


def _runs(one: Proof) -> list[Finding]:
    return [item for item in one.findings if item.kind is proof.Kind.PAIRED_RUN]


def _table(proofs: Mapping[Installation, Mapping[str, Proof]], loaded: Sequence[Loaded]) -> str:
    rows = [["quirk", *(place.heading for place in proofs)], ["---"] * (len(proofs) + 1)]
    for item in loaded:
        name = item.quirk.id
        rows.append([f"`{name}`", *(_cell(item.quirk, place, kept.get(name)) for place, kept in proofs.items())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(quirk: Quirk, place: Installation, one: Proof | None) -> str:
    if one is None or not one.findings:
        return _ELSEWHERE if one is not None and "no run on this installation" in one.reason else ""
    runs = _runs(one)
    if any(item.conclusion is not Conclusion.INCONCLUSIVE for item in runs):
        return _BY_RUN[one.conclusion]
    answers = {affected.answer(place.vllm) for affected in quirk.affected if affected.package == "vllm"}
    is_other = answers == {Answer.NO} and quirk.is_examined("vllm", place.vllm)
    if is_other and one.conclusion in (Conclusion.DOES_NOT_HOLD, Conclusion.INCONCLUSIVE):
        return _OTHER_VERSION
    undecided = runs and one.conclusion is Conclusion.INCONCLUSIVE
    return (_BY_RUN if undecided else _BY_SOURCE)[one.conclusion]


def _installation(report: Report) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in report.versions.items())
    return f"- {report.platform}, {report.machine}: {versions}"


def _seen(item: Loaded, proofs: Mapping[Installation, Mapping[str, Proof]]) -> Iterator[str]:
    """What each paired run of a quirk saw, with and without it."""
    rows = [
        [str(place), text, _text(str(run)), f"{run.seconds:.0f} s", str(kept[item.quirk.id].date)]
        for place, kept in proofs.items()
        if item.quirk.id in kept
        for finding in _runs(kept[item.quirk.id])
        for text, run in (("with", finding.with_quirk), ("without", finding.without_quirk))
        if run is not None
    ]
    if not rows:
        return
    measures = {finding.measure for kept in proofs.values() if item.quirk.id in kept for finding in _runs(kept[item.quirk.id])}
    heads = [["installation", "quirk", "what was seen", "took", "date"], ["---", "---", "---", "---:", "---"]]
    yield f"### {item.quirk.id}"
    yield f"{item.quirk.title}. Looked at: {'; '.join(sorted(map(_text, measures)))}."
    yield "\n".join(f"| {' | '.join(row)} |" for row in [*heads, *rows])


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
