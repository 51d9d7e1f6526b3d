"""Applies one quirk in this process and undoes it, also after an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from quirks_core.apply.patching import install
from quirks_core.base.errors import UsageError
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.quirk import Quirk
from quirks_core.facts.context import RunContext
from quirks_core.hook.in_force import AppliedQuirks, in_force
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import State
from quirks_core.plan.resolve import resolve
from quirks_core.plugins.finder import Discovered, discover
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import declaring_module


@contextmanager
def applied(quirk: Quirk, context: RunContext) -> Iterator[AppliedQuirks]:
    """Applies a quirk's plan for one run, environment variables and patches, and undoes both at the end.

    For example::

        with applied(QUIRK, quirk_context("acme")) as found:
            assert found.plan.value("engine.enforce_eager") is True

    If the module of a patch is not imported yet, the patch is installed at the import.

    Yields:
        The plan in force.

    Raises:
        UsageError: The quirk is not active in that run, so that a test could only pass by accident.
        RefusedError: The plan refuses the run.
        PatchDriftError: A patch was not written against the installed source of its target.
        QuirksError: Another plan is in force in this process.
    """
    item, is_installed = _installed(quirk)
    plan = resolve(context, [item])
    (verdict,) = plan.verdicts
    if verdict.state is not State.ACTIVE:
        raise UsageError(f"{quirk.id} is {verdict.state} in this run, so there is nothing to apply: {verdict.because}")
    with ExitStack() as stack:
        found = stack.enter_context(in_force(plan if is_installed else plan.model_copy(update={"patches": ()})))
        if not is_installed:
            wanted = {(planned.target, planned.source) for planned in plan.patches}
            for patch in quirk.adjustments:
                if isinstance(patch, Patch) and (patch.target, patch.source) in wanted:
                    stack.callback(install(patch, quirk.id))
        yield replace(found, plan=plan)


def entry_point_value(quirk: Quirk) -> str:
    """Returns where an entry point would find the quirk: ``module:NAME``, or the module of a ``quirks_declare`` hook.

    Raises:
        UsageError: The module that declares the quirk offers neither.
    """
    module = declaring_module(quirk)
    for name, value in vars(module).items() if module else ():
        if value is quirk:
            return f"{module.__name__}:{name}"  # type: ignore[union-attr]  # without a module there are no names
    if module and hasattr(module, "quirks_declare"):
        return module.__name__
    raise UsageError(
        f"{quirk.id} ({quirk.location}) is no global of the module that declares it, so that no entry point could name it"
    )


def plugins_of(quirk: Quirk) -> list[Discovered]:
    """Returns the installed plugins that bear the quirk's id, or are the module that declares it."""
    module = declaring_module(quirk)
    names = {quirk.id, module.__name__ if module else ""}
    return [item for item in discover() if names & {item.name, item.entry_point.value}]


def _installed(quirk: Quirk) -> tuple[Loaded, bool]:
    """Finds the quirk among the installed plugins; one that is not installed counts as that of the tests."""
    for item in Registry.load(plugins_of(quirk)).loaded:
        if item.quirk == quirk:
            return item, True
    return Loaded(quirk, "tests", "0", quirk.id), False
