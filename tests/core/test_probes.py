"""Probes: evidence from the installed source, in three values, and what a version leaves open is settled both ways."""

from __future__ import annotations

import sys

import pytest

from quirks_core import Affected, StaticProbe, SymbolProbe
from quirks_core.declaration.trace import Answer
from quirks_core.plan.records import State
from quirks_core.source.vllm_source import INSTALLED

SOURCE = """
from json import loads as read
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LAZY: str
MARK = 1
class Engine:
    size: int
    name = depth = "x"
    def step(self):
        self.steps = 1
"""
MODULE, STEP = "fake_engine.module", "fake_engine.module:Engine.step"
SOURCE_BUILD = "0.1.dev1+g1234567"
RANGE = Affected("fake-engine", introduced="0.9", fixed="0.11.1")


@pytest.fixture(autouse=True)
def fake_engine(write_modules):
    """A package that must not be imported to be read."""
    write_modules({"fake_engine/__init__.py": "raise RuntimeError\n", "fake_engine/module.py": SOURCE})


@pytest.fixture
def verdict(make_context, make_quirk, make_plan):
    """Evaluates one quirk with the given ranges and evidence on a version of the engine."""

    def make(affected, evidence, version=SOURCE_BUILD):
        context = make_context(packages={"fake-engine": version}, assumed=frozenset())
        return make_plan(make_quirk(affected=affected, evidence=evidence), context=context).verdicts[0]

    return make


@pytest.mark.parametrize(("answer", "state"), [(Answer.YES, State.ACTIVE), (Answer.NO, State.DORMANT)])
def test_every_kind_of_probe_settles_a_source_build(verdict, answer, state):
    """Without importing it."""
    bug = answer is Answer.YES
    probes = [
        StaticProbe(MODULE, "MARK", found_means_affected=bug),
        StaticProbe(MODULE, "NO_SUCH_MARK", found_means_affected=not bug),
        *(SymbolProbe(target, present_means_affected=bug) for target in (STEP, MODULE)),
        *(
            SymbolProbe(target, present_means_affected=not bug)
            for target in (f"{MODULE}:Engine.gone", "fake_engine.gone", "fake_engine.gone:Engine")
        ),
    ]
    for probe in probes:
        assert (probe.answer(INSTALLED), "fake_engine" in str(probe), probe.package) == (answer, True, "fake-engine")

        found = verdict(RANGE, probe)

        assert (found.state, found.verdict) == (state, answer)
        assert any(f"(a source build: settled by {probe})" in leaf.wanted for leaf in found.trace)
    assert "fake_engine" not in sys.modules


def test_a_symbol_is_there_whatever_makes_it_in_its_own_place():
    """What the installed source does not show is unknown."""
    here = ("MARK", "LAZY", "read", "TYPE_CHECKING", "Engine", "Engine.size", "Engine.depth", "Engine.step")
    elsewhere = ("loads", "json", "str", "Engine.read", "Engine.steps", "Engine.self", "MARK.real")
    answers = {
        name: SymbolProbe(f"{MODULE}:{name}", present_means_affected=True).answer(INSTALLED) for name in here + elsewhere
    }

    assert answers == {**dict.fromkeys(here, Answer.YES), **dict.fromkeys(elsewhere, Answer.NO)}
    unread = [StaticProbe(module, "x", found_means_affected=True) for module in ("no_such_package.module", "fake_engine.gone")]
    unread += [SymbolProbe(name, present_means_affected=False) for name in ("no_such_package:Engine", "no_such_package")]
    assert [probe.answer(INSTALLED) for probe in unread] == [Answer.UNKNOWN] * 4


def test_a_probe_that_cannot_decide_leaves_it_to_the_next(verdict):
    silent = StaticProbe("fake_engine.gone", "x")
    other = StaticProbe("quirks_core.declaration.probes", "Probe", found_means_affected=False)
    telling = StaticProbe(MODULE, "MARK", found_means_affected=True)

    assert verdict(RANGE, (silent, other)).state is State.UNKNOWN
    assert verdict(RANGE, (silent, other, telling)).state is State.ACTIVE
    for name in ("fake_engine", "Fake.Engine"):  # as pip takes it
        assert verdict(Affected(name, fixed="0.9"), telling).state is State.ACTIVE


@pytest.mark.parametrize(("version", "state"), [("0.10", State.ACTIVE), ("0.12", State.DORMANT)])
def test_a_probe_does_not_overrule_a_version_that_can_be_placed(verdict, version, state):
    contrary = StaticProbe(MODULE, "MARK", found_means_affected=state is State.DORMANT)

    assert verdict(RANGE, contrary, version).state is state
