"""A quirk can take the place of another; both show in the plan, and switching the new one off brings the old one back."""

from __future__ import annotations

import itertools

import pytest

from quirks_core import Default, Fact, model_type
from quirks_core.declaration.quirk import Location
from quirks_core.plan.records import State
from quirks_core.plugins.finder import find_circle

EAGER = "engine.enforce_eager"


@pytest.fixture
def old(make_quirk):
    """A quirk."""
    return make_quirk(id="old", adjustments=Default(EAGER, True))


@pytest.fixture
def successor(make_quirk):
    """Makes its successor, which wants the contrary."""
    contrary = {"adjustments": Default(EAGER, False), "location": Location("acme/new.py", 7)}
    return lambda **more: make_quirk(id="new", supersedes="old", **contrary, **more)


def states(plan):
    """What became of each quirk."""
    return {verdict.id: verdict.state for verdict in plan.verdicts}


def verdict(plan, quirk):
    """What was decided about one quirk."""
    return next(item for item in plan.verdicts if item.id == quirk)


def test_a_superseded_quirk_names_all_its_successors(make_plan, make_quirk, old, successor):
    new = successor()
    plan = make_plan(old, new)
    several = make_plan(old, new, make_quirk(id="another", supersedes="old", location=Location("a.py", 1)))

    assert (states(plan), plan.value(EAGER)) == ({"new": State.ACTIVE, "old": State.SUPERSEDED}, False)
    assert verdict(plan, "old").because == "superseded by new (example-quirks 1.2, acme/new.py:7)"
    assert verdict(plan, "old").verdict == verdict(make_plan(old), "old").verdict == "yes"
    who = "another (example-quirks 1.2, a.py:1) and new (example-quirks 1.2, acme/new.py:7)"
    assert verdict(several, "old").because == f"superseded by {who}"


def test_a_successor_that_is_forced_replaces(make_plan, old, successor):
    new = successor(match=model_type("gemma3"))

    assert states(make_plan(old, new, force=("new",)))["old"] is State.SUPERSEDED


def test_an_undecided_successor_replaces_nothing(make_plan, old, successor):
    plan = make_plan(old, successor(match=Fact("weather").is_true()))

    assert states(plan) == {"new": State.UNKNOWN, "old": State.ACTIVE}
    assert verdict(plan, "old").because.startswith("every condition holds; not superseded, because it is undecided whether ")
    assert "new (example-quirks 1.2, acme/new.py:7) (weather" in verdict(plan, "old").because


CHAIN = {"old": (), "new": "old", "newest": "new"}


@pytest.mark.parametrize(
    ("applying", "disabled", "active"),
    [
        (CHAIN, (), {"newest"}),
        ({"old", "new"}, (), {"new"}),
        ({"old", "newest"}, (), {"newest", "old"}),
        ({"old"}, (), {"old"}),
        (CHAIN, ("newest",), {"new"}),
        (CHAIN, ("newest", "new"), {"old"}),
        (CHAIN, ("old",), {"newest"}),
        (CHAIN, ("all",), set()),
    ],
)
def test_in_a_chain_each_successor_replaces_what_it_names(make_plan, make_quirk, applying, disabled, active):
    quirks = [
        make_quirk(id=name, supersedes=replaced, match=model_type("qwen3" if name in applying else "gemma3"))
        for name, replaced in CHAIN.items()
    ]

    for order in itertools.permutations(quirks):
        assert {verdict.id for verdict in make_plan(*order, disable=disabled).active} == active


def test_a_circle_is_listed_in_the_order_of_replacing():
    graph = {"a": ["b"], "b": ["c", "d"], "c": ["a"]}

    circle = find_circle(graph)

    assert (len(circle), circle[0], find_circle({"a": ["b"]})) == (4, circle[-1], [])
    assert all(after in graph[before] for before, after in itertools.pairwise(circle))
