"""``@pytest.mark.quirk(ID)``: a body that holds with the quirk must fail without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from declarations import declared

HEAD = """
import asyncio, os, pytest, unittest

quirk = pytest.mark.quirk("deepscaler-eager")

def needs_the_quirk():
    assert "deepscaler-eager" not in os.environ.get("MODEL_QUIRKS_DISABLE", "").split(",")

"""
#: Tests in the order of the file, each with how it and its second run must end; the last ones see what is left behind.
BODIES = """
@quirk
def test_needed():
    needs_the_quirk()

@quirk
def test_not_needed():
    pass

@quirk
def test_fails_always():
    assert False

@quirk
async def test_needed_by_a_coroutine():
    await asyncio.sleep(0)
    needs_the_quirk()

@quirk
@pytest.mark.parametrize("seed", [7, 8])
def test_parameters(seed):
    assert seed in (7, 8)
    needs_the_quirk()

@quirk
class TestClass:
    def test_method(self):
        needs_the_quirk()

@quirk
def test_skipped_in_the_body():
    pytest.skip("no engine here")

@pytest.fixture
def broken_before():
    raise OSError("setup")

@pytest.fixture
def broken_after():
    yield
    raise OSError("teardown")

@quirk
def test_setup_fails(broken_before):
    needs_the_quirk()

@quirk
def test_teardown_fails(broken_after):
    needs_the_quirk()

@pytest.mark.xfail(reason="known")
@quirk
def test_xfail_fails():
    assert False

@pytest.mark.quirk("kit-one")
def test_of_a_hook():
    assert "kit-one" not in os.environ["MODEL_QUIRKS_DISABLE"].split(",")

@pytest.fixture
def seen():
    yield os.environ.get("MODEL_QUIRKS_DISABLE")
    with open("teardown", "a") as file:
        print(os.environ.get("MODEL_QUIRKS_DISABLE"), file=file)

@quirk
def test_fixtures_see_the_switch(seen):
    assert seen == "cp-vlm"

def test_unmarked():
    assert open("teardown").read().splitlines() == ["cp-vlm", "cp-vlm,deepscaler-eager"]
"""
OUTCOMES = {
    "test_needed": ("passed", "passed"),
    "test_not_needed": ("passed", "failed"),
    "test_fails_always": ("failed", "passed"),
    "test_needed_by_a_coroutine": ("passed", "passed"),
    "test_parameters[7": ("passed", "passed"),  # the test's own parameters come first
    "test_parameters[8": ("passed", "passed"),
    "TestClass::test_method": ("passed", "passed"),
    "test_skipped_in_the_body": ("skipped", "skipped"),
    "test_setup_fails": ("error", "error"),
    "test_teardown_fails": ("error", "error"),
    "test_xfail_fails": ("xfailed", "passed"),  # it counts for the first run only
    "test_of_a_hook": ("passed", "passed"),
    "test_fixtures_see_the_switch": ("passed", "passed"),
}


@pytest.fixture(scope="module")
def results(tested: Callable[..., Any]) -> Any:
    """One run of pytest over all bodies, beside a plugin that declares by a hook; another quirk is off already."""
    hook = "from quirks_core import hookimpl\n\n@hookimpl\ndef quirks_declare():\n    return [ONE]\n"
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: kit-pack\nVersion: 1\n",
        "entry_points.txt": "[model_quirks]\npack = kit_pack\n",
    }
    unpack = f"""
        from pathlib import Path
        Path("kit_pack-1.dist-info").mkdir()
        for name, text in {metadata!r}.items():
            Path("kit_pack-1.dist-info", name).write_text(text)
        """
    files = {"test_it.py": HEAD + BODIES, "kit_pack.py": declared("kit-one", name="ONE") + hook, "pack.py": unpack}
    return tested(files, "-p", "pack", MODEL_QUIRKS_DISABLE="cp-vlm")


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_marked_test_runs_with_the_quirk_then_without_it(results: Any, name: str) -> None:
    joint = "-" if "[" in name else "["

    assert tuple(results.outcomes[f"test_it.py::{name}{joint}{run}]"] for run in ("with", "without")) == OUTCOMES[name]


def test_an_unmarked_test_runs_once(results: Any) -> None:
    assert results.outcomes["test_it.py::test_unmarked"] == "passed"
    assert len(results.outcomes) == 2 * len(OUTCOMES) + 1


def test_the_run_without_a_quirk_says_how_it_ended(results: Any) -> None:
    not_needed = results.texts["test_it.py::test_not_needed[without]"]

    assert "passes without deepscaler-eager on vLLM " in not_needed
    assert "the quirk is not needed here (quirks prove deepscaler-eager)" in not_needed
    assert "fails without deepscaler-eager, as it should\nAssertionError" in results.texts["test_it.py::test_needed[without]"]


@pytest.mark.parametrize(
    ("variable", "value", "run"),
    [("MODEL_QUIRKS_DISABLE", "all", "with"), ("MODEL_QUIRKS_FORCE", "deepscaler-eager", "without")],
)
def test_a_switch_of_the_shell_against_a_run_is_an_error(
    tested: Callable[..., Any], variable: str, value: str, run: str
) -> None:
    body = "@quirk\ndef test_needed():\n    needs_the_quirk()\n"

    result = tested({"test_it.py": HEAD + body}, "-k", f"[{run}]", **{variable: value})

    assert result.outcomes == {f"test_it.py::test_needed[{run}]": "error"}  # one of the two runs can be selected
    assert variable in result.texts[f"test_it.py::test_needed[{run}]"]


def test_a_marker_that_would_prove_nothing_is_an_error(tested: Callable[..., Any]) -> None:
    wrong = ["", "7", "'deepscaler-eager', 'cp-vlm'", "id='deepscaler-eager'", "'deepscaler-eagre'"]
    files = {f"test_{n}.py": f"{HEAD}@pytest.mark.quirk({text})\ndef test_it():\n    pass\n" for n, text in enumerate(wrong)}

    result = tested(files)
    case = tested({"test_it.py": f"{HEAD}class It(unittest.TestCase):\n    @quirk\n    def test_one(self):\n        pass\n"})

    assert (result.code, result.outcomes) == (pytest.ExitCode.INTERRUPTED, {})
    assert result.out.count("the marker takes the id of one quirk") == 4
    assert "no quirk 'deepscaler-eagre'; did you mean 'deepscaler-eager'?" in result.out
    assert "Traceback" not in result.out
    assert case.code == pytest.ExitCode.USAGE_ERROR
    assert "works on test functions and plain classes only" in case.out
