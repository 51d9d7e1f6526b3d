"""The marker ``@pytest.mark.quirk(ID)``: the test must pass with the quirk and fail without it.

``@pytest.mark.quirk("acme-quirk")`` runs a test twice: ``test_x[with]`` unchanged, and ``test_x[without]`` with the quirk
switched off in MODEL_QUIRKS_DISABLE. The body of the second run must fail; if it passes, the quirk is not needed and the test
item fails. Skips and errors of fixtures are reported as usual, and ``xfail`` counts for the first run only. Both runs share
fixtures with a scope wider than the test, so start the engine in the body of the test.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from quirks_core.plan.loaded import Loaded

_MARKER = "quirk"
_PARAMETER = "_quirk_run"


class _Run(NamedTuple):
    """One of the two runs of a test."""

    quirk: str
    with_quirk: bool


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(id): run the test with the quirk and without it; without, its body must fail (model-quirks)"
    )


@pytest.hookimpl(trylast=True)  # after the test's own parameters, so that its name ends in [...-with]
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes two items of a marked test."""
    marker = metafunc.definition.get_closest_marker(_MARKER)
    if marker is None:
        return
    if len(marker.args) != 1 or not isinstance(marker.args[0], str) or marker.kwargs:
        raise pytest.Collector.CollectError('the marker takes the id of one quirk: @pytest.mark.quirk("acme-quirk")')
    from quirks_core.base.errors import QuirksError

    try:
        quirk_id = _find(marker.args[0]).quirk.id
    except QuirksError as error:
        raise pytest.Collector.CollectError(f"@pytest.mark.quirk: {error}") from None
    metafunc.fixturenames.append(_PARAMETER)
    metafunc.parametrize(_PARAMETER, [_Run(quirk_id, True), _Run(quirk_id, False)], ids=["with", "without"])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuses the marker if pytest cannot parametrize the item, because a single run would prove nothing."""
    if item.get_closest_marker(_MARKER) and _run_of(item) is None:
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.quirk works on test functions and plain classes only")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Switches the quirk off around everything that belongs to the run without it."""
    run = _run_of(item)
    if run is None:
        return (yield)
    from quirks_core.plan.switches import DISABLE_VARIABLE

    with pytest.MonkeyPatch.context() as patch:
        if not run.with_quirk:
            patch.setenv(DISABLE_VARIABLE, ",".join(filter(None, [os.environ.get(DISABLE_VARIABLE), run.quirk])))
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Makes sure that the shell does not contradict the run."""
    run = _run_of(item)
    if run is None:
        return
    from quirks_core.base.errors import QuirksError
    from quirks_core.plan.switches import Switches

    try:
        switch = Switches.gather().of(_find(run.quirk))
    except QuirksError as error:
        pytest.fail(str(error), pytrace=False)
    if run.with_quirk and switch and not switch.on:
        pytest.fail(f"{run.quirk} is {switch}, so there is no run with it: take the name out", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # wraps xfail, which must not excuse a pass without the quirk
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Inverts the result of the body in the run without the quirk."""
    report = yield
    run = _run_of(item)
    if run is None or run.with_quirk or call.when != "call":
        return report
    if call.excinfo is None:
        report.outcome, report.longrepr = "failed", _not_needed(run.quirk)
    elif not call.excinfo.errisinstance(pytest.skip.Exception):
        report.sections.append((f"fails without {run.quirk}, as it should", call.excinfo.exconly()))
        report.outcome, report.longrepr = "passed", None
    else:
        return report
    if hasattr(report, "wasxfail"):
        del report.wasxfail
    return report


def _not_needed(quirk_id: str) -> str:
    from quirks_core.facts.packages import installed_version

    version = installed_version("vllm")
    where = f"vLLM {version}" if version else "this installation, which has no vLLM"
    return f"passes without {quirk_id} on {where}: the quirk is not needed here (quirks prove {quirk_id})"


def _run_of(item: pytest.Item) -> _Run | None:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    run = parameters.get(_PARAMETER)
    return run if isinstance(run, _Run) else None


def _find(quirk_id: str) -> Loaded:
    """Loads the plugin with this name; all plugins if there is none, because a plugin may declare several quirks."""
    from quirks_core.plugins.finder import discover
    from quirks_core.plugins.registry import Registry

    plugins = discover()
    return Registry.load([item for item in plugins if item.name == quirk_id] or plugins).find(quirk_id)
