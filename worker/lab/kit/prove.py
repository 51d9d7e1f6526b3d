"""Proves a quirk on the installed engine: gathers its evidence and says what follows."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from quirks_core.base import child_process
from quirks_core.declaration import flags
from quirks_core.declaration.probes import Probe, ask, in_words
from quirks_core.declaration.quirk import PairedRun, Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import State
from quirks_core.plan.switches import DISABLE_VARIABLE, FORCE_VARIABLE
from worker.lab.kit.evidence import dependencies, elsewhere
from worker.lab.kit.lab import Outcome
from worker.lab.kit.proof import Conclusion, Finding, Kind, Proof, Run
from worker.lab.kit.scenario import NO_ERROR

#: Seconds that one run of a scenario may take.
TIMEOUT_S = 300.0

#: Called before each run of a scenario with what comes next, in words.
Notify = Callable[[str], None]

#: What speaks for a quirk, and against it.
_FOR, _AGAINST = (Conclusion.NEEDED, Conclusion.HOLDS), (Conclusion.NOT_NEEDED, Conclusion.DOES_NOT_HOLD)
_NO_EVIDENCE = "no evidence that can be run here"


def number_of_runs(item: Loaded) -> int:
    """Returns how many runs of scenarios it takes at most to prove a quirk."""
    return 2 * len(item.quirk.paired_runs)


def prove(item: Loaded, folder: Path, *, timeout_s: float = TIMEOUT_S, notify: Notify = lambda _: None) -> Proof:
    """Gathers all the evidence of one quirk on this installation.

    Args:
        item: The quirk.
        folder: Where checkpoints are kept between runs.
        timeout_s: Seconds that each run of a scenario may take.
        notify: Called before each run.
    """
    depends = dependencies(item.quirk)  # before anything runs: what changes meanwhile makes the proof stale
    findings = []
    if not (nowhere := elsewhere(item.quirk)):
        findings += [_probed(probe, item.quirk.kind) for probe in item.quirk.probes]
        findings += [_paired(item.quirk, run, folder, timeout_s, notify) for run in item.quirk.paired_runs]
    conclusion, reason, disagreement = together(findings)
    return Proof(
        id=item.quirk.id,
        title=item.quirk.title,
        distribution=item.distribution,
        version=item.version,
        conclusion=conclusion,
        reason=f"{_NO_EVIDENCE}: {nowhere}" if nowhere else reason,
        disagreement=disagreement,
        findings=tuple(findings),
        date=datetime.now(UTC).date(),
        depends=depends,
    )


def together(findings: Iterable[Finding]) -> tuple[Conclusion, str, bool]:
    """Says what several pieces of evidence show together.

    What was run counts more than what was read. Among evidence of one kind, a quirk is needed as soon as one piece needs it,
    and superfluous only if all say so.

    Returns:
        The conclusion, why, and whether paired runs and probes contradict each other.
    """
    order = [*_FOR, Conclusion.INCONCLUSIVE, *_AGAINST]
    strongest: dict[Kind, Finding] = {}
    for item in sorted(findings, key=lambda item: order.index(item.conclusion)):
        strongest.setdefault(item.kind, item)
    found = [strongest[kind] for kind in Kind if kind in strongest]
    if not found:
        return Conclusion.INCONCLUSIVE, f"{_NO_EVIDENCE}: the quirk names neither a paired run nor a probe", False
    first, *others = [item for item in found if item.conclusion is not Conclusion.INCONCLUSIVE] or found[:1]
    for other in others:
        if other.conclusion is not first.conclusion:
            return first.conclusion, f"{first.reason}; but {other.conclusion} {other.reason}", True
    return first.conclusion, first.reason, False


def conclude(with_quirk: Run, without_quirk: Run | None) -> tuple[Conclusion, str]:
    """Says what a pair of runs shows, in the words of a workaround.

    Args:
        with_quirk: The run with the quirk.
        without_quirk: The run without it; None if it was not worth starting.
    """
    for run, word, wanted in ((with_quirk, "with", True), (without_quirk, "without", False)):
        if run and (doubt := _doubt(run, wanted=wanted)):
            return Conclusion.INCONCLUSIVE, f"{word} the quirk: {doubt}"
    without_passed = without_quirk is not None and without_quirk.passed
    if not with_quirk.passed:
        also = "passes" if without_passed else "fails"
        return Conclusion.INCONCLUSIVE, f"the scenario fails with the quirk and {also} without it"
    if without_passed:
        return Conclusion.NOT_NEEDED, "the scenario passes with the quirk and without it"
    return Conclusion.NEEDED, "the scenario passes with the quirk and fails without it"


def _doubt(run: Run, *, wanted: bool) -> str:
    """Why a run says nothing about the quirk; empty if it does."""
    if run.outcome is None:
        return run.error
    if run.crash:  # a process that dies takes its plans with it
        return f"the process died of {run.crash}" if wanted else ""
    if not run.states:
        return "the scenario made no plan through its lab, so nobody can tell whether the quirk was on"
    if (State.ACTIVE in run.states) is not wanted:
        return f"it was to be {'active' if wanted else 'off'} in the plan, but was {', '.join(sorted(set(run.states)))}"
    return ""


def _paired(quirk: Quirk, evidence: PairedRun, folder: Path, timeout_s: float, notify: Notify) -> Finding:
    def run(variable: str, word: str) -> Run:
        notify(f"{quirk.id} {word} the quirk")
        return run_scenario(evidence.scenario, quirk.id, {variable: quirk.id}, folder, timeout_s, quirk.crash)

    with_quirk = run(FORCE_VARIABLE, "with")
    # Without an outcome of the first run, nothing that the second one shows could decide.
    without_quirk = run(DISABLE_VARIABLE, "without") if with_quirk.outcome else None
    conclusion, reason = conclude(with_quirk, without_quirk)
    return Finding(
        kind=Kind.PAIRED_RUN,
        evidence=evidence.scenario,
        conclusion=Conclusion(quirk.kind.conclusion(conclusion)),
        reason=reason,
        with_quirk=with_quirk,
        without_quirk=without_quirk,
    )


def _probed(probe: Probe, kind: flags.Kind) -> Finding:
    answer = ask(probe)
    word = {Answer.YES: Conclusion.NEEDED, Answer.NO: Conclusion.NOT_NEEDED, Answer.UNKNOWN: Conclusion.INCONCLUSIVE}[answer]
    reason = f"by static probe: the installed source {in_words(answer, kind)}"
    if answer is Answer.UNKNOWN:
        reason = f"{_NO_EVIDENCE}: {probe.package} is not installed, or its source shows neither the bug nor the fix"
    conclusion = Conclusion(kind.conclusion(word))
    return Finding(kind=Kind.STATIC_PROBE, evidence=str(probe), conclusion=conclusion, reason=reason)


# ---- runs of scenarios

#: Signals by which a process ends through its own fault; others come from outside (an out-of-memory killer, say).
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
#: What is looked at in a run whose process died.
_LIVES = "the process lives on"
_LOG_LINES = 3


def run_scenario(
    scenario: str, quirk_id: str, switches: Mapping[str, str], folder: Path, timeout_s: float, crash: str = ""
) -> Run:
    """Runs a scenario in a process of its own.

    An engine that dies, or does not start, is an outcome only with the error that the quirk declares. Any other error may come
    from a full disk, a lost file or a busy machine, and says nothing about the quirk.

    Args:
        scenario: ``package.module:function``.
        quirk_id: The quirk whose state in the scenario's plans is wanted.
        switches: ``MODEL_QUIRKS_*`` variables for the process; it inherits none of them.
        folder: Where checkpoints are kept between runs.
        timeout_s: Seconds after which the run is killed.
        crash: The error that the quirk declares (`quirks_core.declaration.quirk.Quirk.crash`); empty if it declares none.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_QUIRKS_")}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quirks-prove-") as temporary:
        result, log = Path(temporary, "result.json"), Path(temporary, "log")
        # -P: a folder called `worker` where the user happens to be must not hide ours.
        command = [sys.executable, "-P", "-m", "worker.lab.kit.scenario", scenario, quirk_id, str(result), str(folder)]
        with log.open("wb") as output:
            code = child_process.run(command, environ={**environ, **switches}, output=output, limit_s=timeout_s)
        seconds = round(time.monotonic() - started, 1)
        text = log.read_text(encoding="utf-8", errors="replace")
        if result.exists():  # also of a process that hung, or died, on its way out
            run = Run.model_validate({**json.loads(result.read_text(encoding="utf-8")), "seconds": seconds})
        else:
            run = _without_result(code, text, timeout_s).model_copy(update={"seconds": seconds})
    if run.outcome is None or run.outcome.measure not in (NO_ERROR, _LIVES):
        return run
    if crash and re.search(crash, f"{run.outcome.got}\n{text}"):
        return run
    error = f"an error that the quirk does not declare (crash=…): {run.outcome.got}"
    return run.model_copy(update={"outcome": None, "crash": "", "error": error})


def _without_result(code: int | None, log: str, timeout_s: float) -> Run:
    if code is None:
        return Run(error=f"not done after {timeout_s:g} s, so it was killed")
    name = signal.Signals(-code).name if code < 0 else ""
    if name in _CRASHES:
        return Run(outcome=Outcome(False, _LIVES, f"it died of {name}", "it lives"), crash=name)
    how = f"was killed from outside ({name})" if name else f"ended with exit code {code} and without a result"
    last = [line.strip() for line in log.splitlines() if line.strip()][-_LOG_LINES:]
    return Run(error="; ".join([f"the process {how}", *last]))
