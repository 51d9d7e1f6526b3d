"""``quirks prove``: runs the evidence of quirks with and without them, and prints which are still needed here."""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path

from quirks_core.base import child_process, whole_file
from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command
from quirks_core.cli.numbers import positive, seconds
from quirks_core.declaration.quirk import Quirk
from quirks_core.facts.installation import no_engine
from quirks_core.facts.packages import installed_version
from quirks_core.plan.loaded import Loaded
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.terminal import Screen, line, lines
from worker.lab.cli.display import progress_bar
from worker.lab.kit import evidence_table as evidence
from worker.lab.kit.evidence import stale
from worker.lab.kit.proof import Conclusion, Finding, Proof, Report, without_folders
from worker.lab.kit.prove import TIMEOUT_S, number_of_runs, prove

_ENGINE = "vllm"
_COLOURS = {
    Conclusion.NEEDED: "green",
    Conclusion.HOLDS: "green",
    Conclusion.NOT_NEEDED: "bold red",
    Conclusion.DOES_NOT_HOLD: "bold red",
    Conclusion.INCONCLUSIVE: "yellow",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run_prove`."""
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("ids", nargs="*", default=[], metavar="ID", help="the quirks to prove")
    chosen.add_argument("--all", action="store_true", help="prove every installed quirk")
    chosen.add_argument("--changed", action="store_true", help="prove those whose recorded evidence is missing here, or stale")
    parser.add_argument("--timeout", metavar="S", type=seconds, default=TIMEOUT_S, help="time limit of one run (%(default)g s)")
    parser.add_argument(
        "--jobs", metavar="N", type=positive, default=1, help="proofs at the same time (%(default)s); an engine takes 2 to 3 GB"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the report as JSON, after each proof")
    parser.add_argument(
        "--record",
        action="store_true",
        help="for maintainers: record each conclusion in the table of evidence of the quirk's distribution, so that --changed "
        "goes on where a run was ended; the catalogue shows them",
    )


def run_prove(options: argparse.Namespace) -> int:
    """Proves quirks; 1 if evidence is against one, contradicts itself, or has a paired run that did not decide."""
    registry = Registry.load()
    if options.output:
        _check_writable(options.output)
    # With --json standard output holds the JSON alone.
    console = Screen(stderr=options.json)
    for broken in registry.broken:
        console.say(f"[yellow]warning[/] {line(broken)}")
    items = _chosen(options, registry)
    _check_engine(items)
    proofs: list[Proof] = []
    for proof in _proofs(items, options, console):
        console.say(f"[{_COLOURS[proof.conclusion]}]{proof.conclusion}[/] {line(proof.id)}: {lines(proof.reason)}")
        proofs.append(proof)
        if options.output:
            whole_file.write(options.output, without_folders(_as_json(Report.of(proofs))) + "\n")
        if options.record:
            record(registry.find(proof.id).quirk, proof)
    report = Report.of(proofs)
    if options.json:
        print(_as_json(report))
    elif items:
        _show(console, report)
    else:
        console.say("nothing to prove: the recorded evidence is up to date")
    return 1 if any(proof.calls_for_action for proof in report.proofs) else 0


def record(quirk: Quirk, proof: Proof) -> None:
    """Writes what was proved of a quirk into the table of its distribution."""
    path = evidence.path_for(quirk)
    if path is not None and (found := proof.proved) is not None:
        evidence.write(path, evidence.with_proved(evidence.read(path), {quirk.id: found}))


def _chosen(options: argparse.Namespace, registry: Registry) -> list[Loaded]:
    if options.changed:
        return [item for item in registry.loaded if stale(item.quirk)]
    return list(registry.loaded) if options.all else [registry.find(name) for name in dict.fromkeys(options.ids)]


def _proofs(items: list[Loaded], options: argparse.Namespace, console: Screen) -> Iterator[Proof]:
    """Makes the proofs, and yields each as it ends; an interruption ends those that run."""
    with (
        tempfile.TemporaryDirectory(prefix="quirks-lab-") as folder,
        progress_bar(console, sum(map(number_of_runs, items))) as (bar, task),
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        given_up = threading.Event()

        def notify(text: str) -> None:
            if given_up.is_set():
                raise CancelledError
            bar.update(task, description=text)

        def proof_of(item: Loaded) -> Proof:
            own = Path(folder, str(threading.get_ident()))  # two jobs must not make the same checkpoint at the same time
            own.mkdir(exist_ok=True)
            return prove(item, own, timeout_s=options.timeout, notify=notify)

        running = {pool.submit(proof_of, item): item for item in items}
        try:
            for done in as_completed(running):
                bar.advance(task, number_of_runs(running[done]))
                yield done.result()
        except BaseException:
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            child_process.end_all()
            raise


def _show(console: Screen, report: Report) -> None:
    found = [(proof, item) for proof in report.proofs for item in proof.findings]
    if not found:
        return
    versions = ", ".join(f"{name} {text}" for name, text in report.versions.items())
    console.say(f"\nevidence, with and without each quirk: {line(versions)}, platform {line(report.platform or 'unknown')}")
    for proof, item in found:
        how = f"{item.kind}, CUDA graphs" if proof.graphs else item.kind
        console.say(f"[{_COLOURS[item.conclusion]}]{item.conclusion}[/] [bold]{line(proof.id)}[/] ({how})", indent=2)
        console.say(f"[dim]{line(item.measure)}[/]", indent=4)
        console.entries(list(_sides(item)), indent=4)


def _sides(item: Finding) -> Iterator[tuple[str, str]]:
    for name, run in (("with", item.with_quirk), ("without", item.without_quirk)):
        if run:
            yield name, f"{lines(run)} [dim]({run.seconds:.0f} s)[/]"


def _as_json(report: Report) -> str:
    return json.dumps(report.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False)


def _check_engine(items: Iterable[Loaded]) -> None:
    """Refuses to run evidence without an engine: every run would end as INCONCLUSIVE, with a traceback as the reason."""
    if installed_version(_ENGINE) is not None:
        return
    for item in items:
        if item.quirk.paired_runs or any(probe.package == _ENGINE for probe in item.quirk.probes):
            need = f"the evidence of {item.quirk.id} needs it"
            raise UsageError(f"this command cannot run here: {_ENGINE} is not installed: {no_engine()}; {need}")


def _check_writable(file: Path) -> None:
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None


COMMAND = Command("run the evidence of quirks on the installed engine: are they needed?", run_prove, add_arguments)
