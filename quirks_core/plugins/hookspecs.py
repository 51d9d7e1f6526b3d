"""The hooks of the pluggy project ``model_quirks``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pluggy

from quirks_core.plugins.finder import PROJECT

if TYPE_CHECKING:
    from quirks_core.declaration.quirk import Quirk
    from quirks_core.facts.context import RunContext
    from quirks_core.plan.receipt import Receipt
    from quirks_core.plan.records import Plan

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def quirks_declare() -> Iterable[Quirk]:
    """Declares the plugin's quirks.

    Example:
        ::

            @hookimpl
            def quirks_declare():
                return [MY_QUIRK, MY_OTHER_QUIRK]

    Returns:
        The quirks. An entry point that names a `Quirk` object needs no hook.
    """
    raise NotImplementedError


@hookspec
def quirks_facts(context: RunContext) -> Mapping[str, object]:
    """Adds facts that matchers can read as ``distribution.name``.

    Returns:
        JSON values by name; the distribution's name is put in front.
    """
    raise NotImplementedError


@hookspec
def quirks_observe(plan: Plan, receipt: Receipt) -> None:
    """Sees the plan that was applied and what every process acknowledged; for metrics and logs. Errors are caught and shown."""
    raise NotImplementedError
