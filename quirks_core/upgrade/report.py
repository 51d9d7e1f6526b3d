"""Makes the report: every kind of change between two releases, for one run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts import trainers
from quirks_core.plugins.planning import PlanOptions
from quirks_core.plugins.registry import Registry
from quirks_core.upgrade.arguments import argument_changes
from quirks_core.upgrade.computed import computed_defaults
from quirks_core.upgrade.environment import variable_changes, variable_defaults
from quirks_core.upgrade.finding import Finding, Report, Section, Side
from quirks_core.upgrade.known import elsewhere, known_changes
from quirks_core.upgrade.model import model_changes
from quirks_core.upgrade.paste import Form
from quirks_core.upgrade.quirk_changes import quirk_changes
from quirks_core.upgrade.release import Release
from quirks_core.upgrade.requirements import requirement_changes, trainer_windows
from quirks_core.upgrade.rests_on import seam_changes
from quirks_core.upgrade.run import OnRelease, on_release


@dataclass(frozen=True)
class Upgrade:
    """One run, for which releases are compared.

    Attributes:
        config: The run.
        options: What its plans are made with.
        registry: The quirks.
        form: How changes are written.
        server: Options of the server alone that were typed.
    """

    config: GenerationConfig
    options: PlanOptions
    registry: Registry
    form: Form = field(default_factory=lambda: Form(is_command=False))
    server: tuple[str, ...] = ()
    _known: dict[Release, OnRelease] = field(default_factory=dict, repr=False, compare=False)

    def on(self, release: Release) -> OnRelease:
        """Returns the run on a release."""
        if release not in self._known:
            self._known[release] = on_release(release, self.config, self.options, self.registry)
        return self._known[release]

    def compare(self, before: Release, after: Release) -> Report:
        """Compares two releases for the run.

        Args:
            before: The release that the run uses.
            after: The release in question.
        """
        a, b = self.on(before), self.on(after)
        form = replace(self.form, source=after.source)  # suggested options must exist in the target release
        order = list(Section)
        return Report(
            before=_side(before),
            after=_side(after),
            model=b.context.model.name,
            model_type=b.context.model.model_type,
            purpose=b.context.purpose,
            digests=(a.plan.digest, b.plan.digest),
            findings=tuple(sorted(self._findings(a, b, form), key=lambda item: order.index(item.section))),
            elsewhere=tuple(elsewhere(a, b)),
        )

    def _findings(self, a: OnRelease, b: OnRelease, form: Form) -> Iterable[Finding]:
        yield from quirk_changes(a, b, self.registry, form)
        yield from seam_changes(a, b)
        yield from argument_changes(a, b, form, self.server)
        yield from computed_defaults(a, b)
        yield from variable_changes(a, b, form)
        yield from variable_defaults(a, b)
        yield from model_changes(a, b)
        yield from known_changes(a, b)
        yield from requirement_changes(a, b)
        yield from trainer_windows(b, trainers.find(os.environ, ()))


def _side(release: Release) -> Side:
    return Side(name=release.name, version=release.version, notes=release.notes)
