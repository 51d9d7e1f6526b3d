"""``@pytest.mark.quirk(ID)``: a body that holds with the quirk must fail without it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

pytest_plugins = ("pytester",)

ID = "deepscaler-eager"
NEEDS = f"""
import os, pytest

def needs_the_quirk():
    assert {ID!r} not in os.environ.get("MODEL_QUIRKS_DISABLE", "").split(",")
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Runs a test module in a pytest of its own."""
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers -rA\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "xfail_strict = true\n"
    )

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(NEEDS + source)
        # Plugins that would be compiled anew each time.
        return pytester.runpytest_inprocess("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:cacheprovider", *arguments)

    return run


def test_a_body_that_needs_the_quirk_passes_both_times(run: Run) -> None:
    result = run("@pytest.mark.quirk('deepscaler-eager')\ndef test_it():\n    needs_the_quirk()\n")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["PASSED *::test_it[[]with[]]", "PASSED *::test_it[[]without[]]"])


def test_a_body_that_passes_without_it_fails_and_says_that_the_quirk_is_not_needed(run: Run) -> None:
    result = run("@pytest.mark.quirk('deepscaler-eager')\ndef test_it():\n    pass\n")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["passes without deepscaler-eager on *: the quirk is not needed here (quirks prove deepscaler-eager)"]
    )


def test_a_body_that_fails_with_the_quirk_is_a_failure(run: Run) -> None:
    result = run("@pytest.mark.quirk('deepscaler-eager')\ndef test_it():\n    assert False\n")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED *::test_it[[]with[]]*"])


def test_the_run_without_shows_how_the_body_failed(run: Run) -> None:
    result = run("@pytest.mark.quirk('deepscaler-eager')\ndef test_it():\n    needs_the_quirk(); raise KeyError('never')\n")

    result.stdout.fnmatch_lines(["*fails without deepscaler-eager, as it should*", "AssertionError*"])


def test_the_plan_itself_has_the_quirk_on_and_off(run: Run) -> None:
    result = run(
        """
from quirks_core import Registry, Switches

@pytest.mark.quirk('deepscaler-eager')
def test_it(quirk_context):
    plan = Registry.load().resolve(quirk_context(name="deepscaler"), Switches.gather())
    assert plan.value("engine.enforce_eager") is True
"""
    )

    result.assert_outcomes(passed=2)


def test_asynchronous_tests_work_alike(run: Run) -> None:
    result = run(
        """
import asyncio

@pytest.mark.quirk('deepscaler-eager')
async def test_needed():
    await asyncio.sleep(0)
    needs_the_quirk()

@pytest.mark.quirk('deepscaler-eager')
async def test_not_needed():
    await asyncio.sleep(0)
"""
    )

    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["FAILED *::test_not_needed[[]without[]]*"])


def test_parameters_are_kept_and_come_first(run: Run) -> None:
    result = run(
        """
@pytest.mark.quirk('deepscaler-eager')
@pytest.mark.parametrize("seed", [7, 8])
def test_it(seed):
    assert seed in (7, 8)
    needs_the_quirk()
"""
    )

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*::test_it[[]7-with[]]", "*::test_it[[]7-without[]]"])


def test_fixtures_see_the_same_switch_as_the_body(run: Run) -> None:
    result = run(
        """
@pytest.fixture
def seen():
    yield os.environ.get("MODEL_QUIRKS_DISABLE")
    with open("teardown", "a") as file:
        print(os.environ.get("MODEL_QUIRKS_DISABLE"), file=file)

@pytest.mark.quirk('deepscaler-eager')
def test_it(seen):
    assert seen is None

def test_at_teardown_too():
    assert open("teardown").read().splitlines() == ["None", "deepscaler-eager"]
"""
    )

    result.assert_outcomes(passed=3)


def test_what_is_switched_off_already_stays_off(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "cp-vlm")

    result = run(
        """
@pytest.mark.quirk('deepscaler-eager')
def test_it():
    assert "cp-vlm" in os.environ["MODEL_QUIRKS_DISABLE"]
    if os.environ["MODEL_QUIRKS_DISABLE"] != "cp-vlm":
        assert os.environ["MODEL_QUIRKS_DISABLE"] == "cp-vlm,deepscaler-eager"
        raise RuntimeError("without")
"""
    )

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*RuntimeError: without*"])
    assert os.environ["MODEL_QUIRKS_DISABLE"] == "cp-vlm"


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("MODEL_QUIRKS_DISABLE", "deepscaler-eager", "with"),
        ("MODEL_QUIRKS_DISABLE", "all", "with"),
        ("MODEL_QUIRKS_DISABLE", "enforce_eager", "with"),
        ("MODEL_QUIRKS_FORCE", "deepscaler-eager", "without"),
    ],
)
def test_a_switch_in_the_shell_that_contradicts_a_run_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str
) -> None:
    monkeypatch.setenv(variable, value)

    result = run("@pytest.mark.quirk('deepscaler-eager')\ndef test_it():\n    needs_the_quirk()\n", "-k", f"test_it[{name}]")

    result.assert_outcomes(errors=1, deselected=1)
    result.stdout.fnmatch_lines([f"*{variable}*"])


def test_skips_stay_skips(run: Run) -> None:
    result = run(
        """
@pytest.mark.quirk('deepscaler-eager')
def test_in_the_body():
    pytest.skip("no engine here")

@pytest.mark.skip(reason="by a mark")
@pytest.mark.quirk('deepscaler-eager')
def test_by_mark():
    pass

@pytest.mark.quirk('deepscaler-eager')
def test_import():
    pytest.importorskip("no_such_module_anywhere")
"""
    )

    result.assert_outcomes(skipped=6)


@pytest.mark.parametrize("phase", ["raise OSError('setup')\n    yield", "yield\n    raise OSError('teardown')"])
def test_errors_of_fixtures_stay_errors(run: Run, phase: str) -> None:
    result = run(
        f"""
@pytest.fixture
def broken():
    {phase}

@pytest.mark.quirk('deepscaler-eager')
def test_it(broken):
    needs_the_quirk()
"""
    )

    outcomes = result.parseoutcomes()
    assert outcomes["errors"] == 2
    assert outcomes.get("passed", 0) == (2 if "teardown" in phase else 0)


def test_xfail_counts_for_the_run_with_the_quirk_only(run: Run) -> None:
    result = run(
        """
@pytest.mark.xfail(reason="known")
@pytest.mark.quirk('deepscaler-eager')
def test_fails_always():
    assert False

@pytest.mark.xfail(reason="known", strict=False)
@pytest.mark.quirk('deepscaler-eager')
def test_fails_never():
    pass
"""
    )

    result.assert_outcomes(xfailed=1, passed=1, xpassed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED *::test_fails_never[[]without[]]*"])


def test_an_unknown_id_is_an_error_of_collection_with_the_nearest_name(run: Run) -> None:
    result = run("@pytest.mark.quirk('deepscaler-eagre')\ndef test_it():\n    pass\n\ndef test_other():\n    pass\n")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no quirk 'deepscaler-eagre'; did you mean 'deepscaler-eager'?*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("arguments", ["", "7", "'deepscaler-eager', 'cp-vlm'", "id='deepscaler-eager'"])
def test_the_marker_takes_one_id(run: Run, arguments: str) -> None:
    result = run(f"@pytest.mark.quirk({arguments})\ndef test_it():\n    pass\n")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*takes the id of one quirk*"])


def test_a_class_is_marked_as_a_whole(run: Run) -> None:
    result = run(
        """
@pytest.mark.quirk('deepscaler-eager')
class TestIt:
    def test_one(self):
        needs_the_quirk()

    def test_two(self):
        needs_the_quirk()
"""
    )

    result.assert_outcomes(passed=4)


def test_a_unittest_case_is_refused_because_it_would_prove_nothing(run: Run) -> None:
    result = run(
        """
import unittest

class It(unittest.TestCase):
    @pytest.mark.quirk('deepscaler-eager')
    def test_one(self):
        pass
"""
    )

    assert result.ret != pytest.ExitCode.OK
    assert "works on test functions and plain classes only" in result.stdout.str() + result.stderr.str()


def test_one_of_the_two_runs_can_be_selected(run: Run) -> None:
    result = run("@pytest.mark.quirk('deepscaler-eager')\ndef test_it():\n    needs_the_quirk()\n", "-k", "without")

    result.assert_outcomes(passed=1, deselected=1)


def test_a_quirk_that_a_hook_declares_is_found(run: Run, install: Callable[..., None], declared: Callable[..., str]) -> None:
    hook = "from quirks_core import hookimpl\n\n@hookimpl\ndef quirks_declare():\n    return [ONE]\n"
    install("kit-pack", {"kit-pack": "kit_pack"}, kit_pack=declared("kit-one", name="ONE") + hook)

    result = run(
        """
@pytest.mark.quirk('kit-one')
def test_it():
    assert os.environ.get("MODEL_QUIRKS_DISABLE") != "kit-one"
"""
    )

    result.assert_outcomes(passed=2)


def test_an_unmarked_test_runs_once(run: Run) -> None:
    result = run("def test_it():\n    needs_the_quirk()\n")

    result.assert_outcomes(passed=1)


def test_stopping_the_whole_run_is_not_taken_for_a_failing_body(run: Run) -> None:
    result = run(
        """
@pytest.mark.quirk('deepscaler-eager')
def test_it():
    if os.environ.get("MODEL_QUIRKS_DISABLE"):
        pytest.exit("stop", returncode=9)
"""
    )

    assert result.ret == 9
    result.assert_outcomes(passed=1)
