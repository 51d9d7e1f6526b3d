"""A quirk can take the place of another; both show in the plan, and switching the new one off brings the old one back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quirks_core import Default, Fact, model_type
from quirks_core.declaration.quirk import Location
from quirks_core.plan.records import State
from quirks_core.plugins.finder import find_circle

EAGER = "engine.enforce_eager"


@pytest.fixture
def chain(make_quirk):
    """A quirk, its successor, which wants the contrary, and the successor's own."""
    return (
        make_quirk(id="old", adjustments=Default(EAGER, True)),
        make_quirk(id="new", supersedes="old", adjustments=Default(EAGER, False), location=Location("acme/new.py", 7)),
        make_quirk(id="newest", supersedes="new"),
    )


def states(plan):
    """What became of each quirk."""
    return {verdict.id: verdict.state for verdict in plan.verdicts}


def verdict(plan, quirk):
    """What was decided about one quirk."""
    return next(item for item in plan.verdicts if item.id == quirk)


def test_a_superseded_quirk_names_all_its_successors(make_plan, make_quirk, chain):
    old, new, _ = chain
    plan = make_plan(old, new)
    several = make_plan(old, new, make_quirk(id="another", supersedes="old", location=Location("a.py", 1)))

    assert (states(plan), plan.value(EAGER)) == ({"new": State.ACTIVE, "old": State.SUPERSEDED}, False)
    assert verdict(plan, "old").because == "superseded by new (example-quirks 1.2, acme/new.py:7)"
    assert verdict(plan, "old").verdict == verdict(make_plan(old), "old").verdict == "yes"
    who = "another (example-quirks 1.2, a.py:1) and new (example-quirks 1.2, acme/new.py:7)"
    assert verdict(several, "old").because == f"superseded by {who}"


@pytest.mark.parametrize(
    ("disabled", "active"),
    [((), "newest"), (("newest",), "new"), (("newest", "new"), "old"), (("old",), "newest"), (("all",), None)],
)
def test_of_a_chain_the_last_that_is_on_counts(make_plan, chain, disabled, active):
    assert [verdict.id for verdict in make_plan(*chain, disable=disabled).active] == ([active] if active else [])


def test_a_successor_that_is_forced_replaces(make_plan, make_quirk, chain):
    new = make_quirk(id="new", supersedes="old", match=model_type("gemma3"))

    assert states(make_plan(chain[0], new, force=("new",)))["old"] is State.SUPERSEDED


def test_an_undecided_successor_replaces_nothing(make_plan, make_quirk, chain):
    new = make_quirk(id="new", supersedes="old", match=Fact("weather").is_true(), location=Location("acme/new.py", 7))

    plan = make_plan(chain[0], new)

    assert states(plan) == {"new": State.UNKNOWN, "old": State.ACTIVE}
    assert verdict(plan, "old").because.startswith("every condition holds; not superseded, because it is undecided whether ")
    assert "new (example-quirks 1.2, acme/new.py:7) (weather" in verdict(plan, "old").because


@pytest.mark.parametrize(
    ("applying", "active"),
    [({"new", "newest"}, {"newest"}), ({"new"}, {"new"}), ({"newest"}, {"newest", "old"}), (set(), {"old"})],
    ids=lambda names: "+".join(sorted(names)),
)
def test_in_a_chain_each_successor_replaces_what_it_names(make_plan, make_quirk, applying, active):
    links = {"old": (), "new": "old", "newest": "new"}
    quirks = [
        make_quirk(id=name, supersedes=replaced, match=model_type("qwen3" if name in {"old", *applying} else "gemma3"))
        for name, replaced in links.items()
    ]

    for order in itertools.permutations(quirks):
        assert {verdict.id for verdict in make_plan(*order).active} == active


@given(st.dictionaries(st.sampled_from("abcde"), st.sets(st.sampled_from("abcdefg"), max_size=3)))
def test_a_circle_is_found_wherever_there_is_one(graph):
    def reached(start):
        found, left = set(), list(graph.get(start, ()))
        while left:
            if (name := left.pop()) not in found:
                found.add(name)
                left += graph.get(name, ())
        return found

    circle = find_circle(graph)

    assert bool(circle) is any(name in reached(name) for name in graph)
    assert all(after in graph[before] for before, after in itertools.pairwise(circle))
    assert circle[:1] == circle[-1:]
