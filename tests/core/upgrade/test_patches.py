"""``quirks upgrade --patches``: monkey-patches of vLLM that other packages make, held against releases."""

from __future__ import annotations

import textwrap

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.upgrade.finding import Level, Verdict
from quirks_core.upgrade.monkey_patches import read_patches
from quirks_core.upgrade.patch_changes import check_patches
from quirks_core.upgrade.release import find_release

OLD = """
    from vllm.base import Base

    LIMIT = 1

    class Scheduler(Base):
        def schedule(self, requests):
            '''Schedules.'''
            return requests

        def _finish(self, request):
            return self.schedule([request])

        def _report(self):
            return self._finish(None)

        def kept(self, one: int):
            return one

    def helper(one, two):
        return one + two
"""
NEW = """
    from vllm.base import Base

    LIMIT = 2

    class Scheduler(Base):
        def schedule(self, requests, budget):
            return requests[:budget]

        def _report(self):
            return self.schedule([], 0)

        def kept(self, one: 'int | None'):
            # a comment, an annotation and a docstring are no change
            '''Keeps.'''
            return one

        def drained(self):
            return self._report

    def helper(one, two, three=0):
        return one + two + three
"""
BASE = """
    class Base:
        def shared(self):
            return 1

        def _of_nobody(self):
            return 2
"""
CALLER = (
    "from vllm.core import Scheduler, helper\n\ndef run(s):\n    s.kept(1)\n    s.shared()\n    s.drained()\n    helper(1, 2)\n"
)


@pytest.fixture
def trees(tree):
    """Two small releases: what is asked of them is how vLLM's source can change."""

    def make(version, core):
        texts = {"core": textwrap.dedent(core), "base": textwrap.dedent(BASE), "caller": CALLER}
        texts["version"] = f"__version__ = '{version}'"
        return find_release(tree(version, {f"vllm/{name}.py": text for name, text in texts.items()}))

    return make("0.30.0", OLD), make("0.33.0", NEW)


@pytest.fixture
def check(trees, tmp_path):
    """Holds the patches of a file against the second of the two releases; returns its report."""

    def run(text):
        file = tmp_path / "patches.py"
        file.write_text(text, encoding="utf-8")
        return check_patches(str(file), *trees)

    return run


def only(report):
    (found,) = report.findings
    return found


KEPT, HELPER = "vllm.core.Scheduler.kept", "vllm.core.helper"

# ---- what is found


@pytest.mark.parametrize(
    ("text", "way", "target"),
    [
        ("import vllm.core as c\ns = c.Scheduler\ns.kept = f", "assignment", KEPT),
        ("from vllm.core import Scheduler\nsetattr(Scheduler, 'kept', f)", "setattr", KEPT),
        ("P = 'vllm.core.helper'\nmock.patch(P, f).start()", "mock", HELPER),
        ("import vllm.core as c\nwith mock.patch.object(c, 'helper', f):\n    pass", "mock", HELPER),
    ],
)
def test_every_way_to_patch_is_read(text, way, target):
    (found,) = read_patches(text, "p.py")

    assert (found.way, found.targets) == (way, (target,))


@pytest.mark.parametrize(
    "text",
    [
        "from vllm.core import Scheduler\noriginal = Scheduler.kept\nScheduler.kept = original",
        "from vllm.core import Scheduler\nfrom mine import Scheduler\nScheduler.kept = f",
        "import vllm.core\ndef f(vllm):\n    vllm.core.helper = 1",
    ],
)
def test_what_patches_nothing_of_vllm_is_left_out(text):
    assert read_patches(text, "p.py") == []


# ---- what a release means for it

_IMPORTS = """
import contextlib, vllm
from unittest.mock import patch
from vllm import base, core
from vllm.core import Scheduler
"""
_GONE = "Scheduler._finish = lambda self, request: 1"
_GUARDED, _UNDEFINED = "the code goes on without the patch", "neither 0.30.0 nor 0.33.0 defines it"
_ONCE = f"""
def patch_it():
    if getattr(Scheduler._finish, "_mine", False):
        return
    {_GONE}
"""
_OF_A_VERSION = f"""
def apply():
    if version.parse(vllm.__version__) >= version.parse("0.32"):
        return
    {_GONE}
"""


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        (_GONE, Level.STOP, "0.33.0: vllm.core has no Scheduler._finish (0.30.0 has it)"),
        (
            "patch('vllm.core.Scheduler.nowhere', print)",
            Level.STOP,
            "0.33.0: vllm.core has no Scheduler.nowhere (nor has 0.30.0)",
        ),
        ("core.LIMITS = 3", Level.UNKNOWN, _UNDEFINED),
        ("Scheduler.shedule = make()", Level.UNKNOWN, _UNDEFINED),
        (f"try:\n    {_GONE}\nexcept AttributeError:\n    pass", Level.UNKNOWN, _GUARDED),
        (f"if hasattr(Scheduler, '_finish'):\n    {_GONE}", Level.UNKNOWN, _GUARDED),
        (f"with contextlib.suppress(AttributeError):\n    {_GONE}", Level.UNKNOWN, _GUARDED),
        (_ONCE, Level.STOP, "(0.30.0 has it)"),
        (_OF_A_VERSION, Level.UNKNOWN, "it stands under a condition on vLLM's version"),
        ("Scheduler.schedule = lambda self, requests: 1", Level.STOP, "what replaces it does not take budget"),
        ("core.helper = lambda one, two: 1", Level.UNKNOWN, "what replaces it does not take three"),
        ("core.helper = lambda *args, **more: 1", Level.UNKNOWN, "its signature was (one, two), and is (one, two, three=0)"),
        ("Scheduler._report = lambda self: None", Level.UNKNOWN, "0.33.0 has other source (vllm.core:10)"),
        ("vllm.caller.helper = f", Level.UNKNOWN, "its signature was (one, two), and is (one, two, three=0)"),  # an import
        ("base.Base._of_nobody = f", Level.STOP, "nothing in 0.33.0 calls it, nor in 0.30.0: the patch does nothing"),
    ],
)
def test_what_a_release_changes_decides_about_a_patch(check, text, level, words):
    found = only(check(_IMPORTS + text))

    assert found.level is level
    assert found.message.endswith(words)


@pytest.mark.parametrize(
    "text",
    [
        "Scheduler.kept = lambda self, one: one + 1",
        "Scheduler._mine = True\nScheduler.requests = []",  # a mark of its own, and an attribute of instances
        "try:\n    from vllm.old import S\nexcept ImportError:\n    from vllm.core import Scheduler as S\nS.kept = f",
    ],
)
def test_a_target_that_nothing_changes_is_a_clean_go(check, text):
    report = check(_IMPORTS + text)

    assert (report.verdict, report.findings) == (Verdict.GO, ())


def test_a_changed_target_has_the_lines(check):
    body, value = (only(check(_IMPORTS + text)).lines for text in ("Scheduler._report = f", "core.LIMIT = 3"))

    assert {"-    return self._finish(None)", "+    return self.schedule([], 0)"} <= set(body)
    assert value == ("@@ -1 +1 @@", "-LIMIT = 1", "+LIMIT = 2")


def test_a_package_is_searched_without_its_tests(trees, tmp_path):
    """What is no Python is unknown."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("import vllm.core\nvllm.core.helper = 1")
    (tmp_path / "a.py").write_text("import vllm.core\nvllm.core.Scheduler.kept = lambda self, one: 1")
    (tmp_path / "b.py").write_text("import vllm (")

    report = check_patches(str(tmp_path), *trees)

    assert (report.patches, only(report).level, only(report).subject) == (1, Level.UNKNOWN, "b.py")


# ---- the command


def test_the_command_for_patches_behaves_like_the_others(quirks, trees, tmp_path):
    file = tmp_path / "mine.py"

    def run(value, *form):
        file.write_text(f"from vllm.core import Scheduler\nScheduler.{value} = lambda self, one: None\n")
        return quirks("upgrade", "--from", trees[0].name, "--to", trees[1].name, "--patches", file, *form)

    go, unknown, stop = run("kept"), run("_report", "--markdown"), run("_finish", "--json")

    assert (go.code, unknown.code, stop.code) == (0, 3, 2)
    assert "\ngo: 1 target is as before\n" in go.out
    assert unknown.out.startswith("## ")
    assert "\n**unknown: 1 to be read**\n" in unknown.out
    assert "\n  ```diff\n" in unknown.out
    assert (stop.json["verdict"], stop.json["findings"][0]["subject"]) == ("stop", "vllm.core.Scheduler._finish")


def test_what_patches_nothing_or_is_not_there_is_a_usage_error(check, trees):
    with pytest.raises(UsageError, match="no patch of vLLM was found in it"):
        check("print('nothing')")
    with pytest.raises(UsageError, match="there is no such file, folder or installed package"):
        check_patches("nowhere_at_all", *trees)
