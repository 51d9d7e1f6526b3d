"""Makes the plan of a configuration; command line, worker, group, parity and bisect all call it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.context import RunContext
from quirks_core.plan.records import Plan
from quirks_core.plan.switches import NOTHING, Switches, SwitchNames
from quirks_core.plugins.lock import Lock, LockError
from quirks_core.plugins.registry import Registry

#: Set to 1, a broken plugin is an error.
STRICT_VARIABLE = "MODEL_QUIRKS_STRICT"
#: Lock file that every plan is held against.
LOCKED_VARIABLE = "MODEL_QUIRKS_LOCKED"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan is made with beside the configuration.

    Attributes:
        switches: What the user turned off or on, in all layers.
        strict: A broken plugin is an error.
        locked: Lock file that the loaded quirks must agree with; None for none.
        assume: ``package==version`` and ``platform==name`` to take instead of what is installed.
    """

    switches: Switches = field(default_factory=Switches)
    strict: bool = False
    locked: str | Path | None = None
    assume: tuple[str, ...] = ()

    @classmethod
    def gather(
        cls,
        config: GenerationConfig | None = None,
        *,
        call: SwitchNames = NOTHING,
        command_line: SwitchNames = NOTHING,
        strict: bool = False,
        locked: str | Path | None = None,
        assume: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> PlanOptions:
        """Collects the options of call or command line, environment and configuration, the stronger layer first.

        Raises:
            UsageError: One layer turns the same name off and on, or MODEL_QUIRKS_STRICT is neither 1 nor 0.
        """
        environ = os.environ if environ is None else environ
        section = config.quirks if config is not None else None
        file = SwitchNames(section.disable, section.force) if section is not None else NOTHING
        return cls(
            switches=Switches.gather(call=call, command_line=command_line, environ=environ, config_file=file),
            strict=strict or _is_strict(environ),
            locked=locked if locked is not None else environ.get(LOCKED_VARIABLE) or (section.locked if section else None),
            assume=tuple(assume),
        )

    def registry(self) -> Registry:
        """Loads the plugins.

        Raises:
            BrokenPluginsError: There are broken plugins, and `strict` holds.
            LockError: The loaded quirks are not those of the lock file.
        """
        registry = Registry.load(strict=self.strict, switches=self.switches)
        if self.locked is not None and (differences := Lock.read(self.locked).differences(registry)):
            raise LockError(str(self.locked), differences)
        return registry


def make_plan(
    config: GenerationConfig,
    options: PlanOptions | None = None,
    *,
    registry: Registry | None = None,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """Makes the plan for a run. Refusals are part of it; `Plan.check` raises them.

    Without options, those of environment and configuration count; without a registry, the plugins are loaded.

    Raises:
        UsageError: Something in the configuration or the options is wrong.
        BrokenPluginsError, LockError: As for `PlanOptions.registry`.
    """
    options = options or PlanOptions.gather(config, environ=environ)
    registry = registry or options.registry()
    context = RunContext.gather(config, fact_names=registry.fact_names, assume=options.assume, environ=environ)
    return registry.resolve(context, options.switches)


def _is_strict(environ: Mapping[str, str]) -> bool:
    text = environ.get(STRICT_VARIABLE, "0")
    if text not in ("", "0", "1"):
        raise UsageError(f"{STRICT_VARIABLE}={text!r}: set it to 1, or to 0")
    return text == "1"
