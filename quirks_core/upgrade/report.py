"""Makes the report: every kind of change between two releases, for one run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.serve_command import ServeCommand
from quirks_core.facts import trainers
from quirks_core.facts.context import RunContext
from quirks_core.plugins.planning import PlanOptions
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.finding import Finding
from quirks_core.source.engine_parser import Answer, Run, judge
from quirks_core.upgrade.archive import PACKAGE
from quirks_core.upgrade.arguments import read_findings, source_findings, suggestions
from quirks_core.upgrade.changes import Change, Form, changed_values, written_command
from quirks_core.upgrade.environment import variable_changes, variable_defaults
from quirks_core.upgrade.finding import Level, Report, Section, Verdict, verdict_of
from quirks_core.upgrade.judged import Judged, judged_findings
from quirks_core.upgrade.model import model_changes
from quirks_core.upgrade.quirk_changes import hook_problem, quirk_changes
from quirks_core.upgrade.release import OnRelease, Release
from quirks_core.upgrade.requirements import requirement_changes, trainer_windows

#: A key of vLLM's configuration that is set: ``cache_config.block_size = 16``.
_SETS = re.compile(r"\b(\w+_config\.\w+) = ")
#: What a release without a version is taken for: a source build, which no range of versions can place, but probes can.
_SOURCE_BUILD = "0.1.dev0"


@dataclass(frozen=True)
class Upgrade:
    """One run, for which releases are compared.

    Attributes:
        config: The run.
        options: What its plans are made with.
        registry: The quirks.
        command: The command line that describes it; None for a configuration.
        read_only: No code of a release runs; its source alone is read.
        notify: Called with what is done.
    """

    config: GenerationConfig
    options: PlanOptions
    registry: Registry
    command: ServeCommand | None = None
    read_only: bool = False
    notify: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def on(self, release: Release) -> OnRelease:
        """Makes the plan of the run on a release, with probes and patches held against the source of that release.

        Packages that the release pins to another version than the installed one count as that version; those that are merely
        out of its range are unknown.

        Raises:
            UsageError: Something in the configuration or the options is wrong.
        """
        if any(text.partition("==")[0].strip() == PACKAGE for text in self.options.assume):
            raise UsageError(
                "--assume vllm==… and --from and --to contradict each other: name the releases with --from and --to"
            )
        version = release.version or _SOURCE_BUILD
        # Assumed while the facts are gathered, as an argument that this release lacks is a finding, not an error.
        assume, names = [f"{PACKAGE}=={version}", *self.options.assume], self.registry.fact_names
        context = RunContext.gather(self.config, fact_names=names, assume=assume, source=release.source)
        packages, pinned = release.packages(context.packages, but_not=context.assumed)
        assumed = (context.assumed | pinned) - {PACKAGE}
        context = context.model_copy(update={"packages": {**packages, PACKAGE: version}, "assumed": assumed})
        return OnRelease(release, self.registry.resolve(context, self.options.switches))

    def compare(self, before: Release, after: Release) -> Report:
        """Compares two releases for the run."""
        a, b = self.on(before), self.on(after)
        form = Form(self.command is not None, after.source)  # suggested options must exist in the target release
        order: list[str] = list(Section)
        found = sorted(self._findings(a, b, form), key=lambda item: order.index(item.section))
        findings = tuple(replace(item, paste=form.paste(item.change)) if item.change is not None else item for item in found)
        return Report(
            before=before,
            after=after,
            model=b.context.model.name,
            model_type=b.context.model.model_type,
            purpose=b.context.purpose,
            digests=(a.plan.digest, b.plan.digest),
            findings=findings,
            rewritten="" if verdict_of(findings) is Verdict.STOP else self._rewritten(a, form, findings),
        )

    def _rewritten(self, a: OnRelease, form: Form, findings: Iterable[Finding]) -> str:
        """The run with every change that the findings name."""
        changes = [item.change for item in findings if item.level is Level.CHANGE and item.change]
        if self.command is not None:
            words = form.changed_words(self.command.words, changes, a.release.source)
            return written_command(words, self.config.env, changes)
        values = changed_values(self.config.model_dump(mode="json", exclude_unset=True), changes)
        return json.dumps({name: value for name, value in values.items() if value or name != "env"}, indent=2)

    def _findings(self, a: OnRelease, b: OnRelease, form: Form) -> Iterable[Finding]:
        yield from quirk_changes(a, b, self.registry)
        yield from hook_problem(b)
        yield from source_findings(a, b)
        yield from self._arguments(a, b, form)
        yield from variable_changes(a, b)
        yield from variable_defaults(a, b, is_server=form.is_command)
        yield from model_changes(a, b)
        yield from requirement_changes(b)
        yield from trainer_windows(b, trainers.find(os.environ, ()))

    def _arguments(self, a: OnRelease, b: OnRelease, form: Form) -> Iterator[Finding]:
        """What the two releases make of the run; what their source shows, where their parsers cannot run."""
        suggested = tuple(suggestions(a, b, self.command))
        why = "not decided, because no code of it runs (--read-only)"
        if not self.read_only:
            before, after = self._answers(a, b, form, [item.change for item in suggested if item.change])
            why = ""
            for answer, side in ((after, b), (before, a)):
                if answer.failure:
                    why = f"the files of {side.release.label} cannot be imported here ({answer.failure})"
            if not why:
                changed = after.lines[1] if suggested else None
                names = a.release.label, b.release.label
                sources = (side.release.source.module_source("vllm.platforms.cpu") or "" for side in (a, b))
                of_cpu = frozenset(name for text in sources for name in _SETS.findall(text))
                judged = Judged(before.lines[0], after.lines[0], changed, names, b.context.platform, of_cpu)
                yield from judged_findings(judged, suggested)
                return
        yield from suggested
        yield from read_findings(a, b, why)

    def _answers(self, a: OnRelease, b: OnRelease, form: Form, changes: list[Change]) -> tuple[Answer, Answer]:
        words = self.command.words if self.command else None
        arguments = {} if self.command else a.context.typed_arguments
        run = Run(words, arguments, self.config.env, dict(a.context.model.config) or None)
        runs = [run]
        if changes and words is not None:
            runs.append(replace(run, words=form.changed_words(words, changes, a.release.source)))
        elif changes:
            runs.append(replace(run, arguments=changed_values({"engine": run.arguments}, changes)["engine"]))
        with ThreadPoolExecutor(1) as pool:
            before = pool.submit(judge, a.release.source, [run], notify=self.notify)
            after = judge(b.release.source, runs, notify=self.notify)
            return before.result(), after
