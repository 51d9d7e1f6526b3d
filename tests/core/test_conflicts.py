"""A conflict names everybody with distribution, version, file and line, and the switch that it names settles it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from quirks_core import Default, Loaded, Patch, Plan, Quirk, Require, RunContext, Switches, Wishes
from quirks_core.fingerprints import fingerprint
from quirks_core.plan import Refusal
from quirks_core.quirk import Location
from quirks_core.resolve import resolve

MakeContext = Callable[..., RunContext]
MakeLoaded = Callable[..., Loaded]
MakeQuirk = Callable[..., Quirk]
MAPPING = "engine.hf_overrides"

#: What several quirks want, each given as a list of adjustments, in order of their ids.
CONFLICTS: dict[str, list[list[Any]]] = {
    "two values of a scalar": [[Default("engine.load_format", "auto")], [Default("engine.load_format", "dummy")]],
    "two requirements": [[Require("engine.load_format", "auto")], [Require("engine.load_format", "dummy")]],
    "three quirks with two values": [
        [Require("engine.load_format", "auto")],
        [Require("engine.load_format", "dummy")],
        [Require("engine.load_format", "auto")],
    ],
    "three values": [[Default("engine.seed", number)] for number in range(3)],
    "one key of a mapping": [[Default(MAPPING, {"a": {"b": 1}})], [Default(MAPPING, {"a": {"b": 2}})]],
    "a key and a key below it": [[Default(MAPPING, {"a": 1})], [Default(MAPPING, {"a": {"b": 1}})]],
    "a key and two keys far below it": [
        [Require(MAPPING, {"a": 1})],
        [Require(MAPPING, {"a": {"b": {"c": 1}}})],
        [Require(MAPPING, {"a": {"b": {"d": 1}}})],
    ],
    "a requirement and a default below it": [[Require(MAPPING, {"a": 1})], [Default(MAPPING, {"a": {"b": 1}})]],
}


@pytest.fixture
def conflict_of(make_context: MakeContext, make_quirk: MakeQuirk, loaded: MakeLoaded) -> Callable[..., Plan]:
    """Resolves quirks of different distributions, with some of them switched off."""

    def make(wanted: list[list[Any]], off: list[str] | None = None) -> Plan:
        items = [
            loaded(
                make_quirk(id=f"quirk-{n}", adjustments=adjustments, location=Location(f"pack_{n}/file.py", 10 + n)),
                f"dist-{n}",
                f"{n}.5",
            )
            for n, adjustments in enumerate(wanted)
        ]
        return resolve(make_context(), items, Switches.gather(command_line=Wishes(off or []), environ={}))

    return make


def ways_out(refusal: Refusal) -> list[list[str]]:
    """The alternatives that a refusal's switch names, each as the ids to switch off."""
    by_option = [re.findall(r"--disable (\S+)", way) for way in re.split(r"\) or ", refusal.switch)]
    by_key = [found.split(", ") for found in re.findall(r"quirks\.disable: \[(.*?)\]", refusal.switch)]
    assert by_option == by_key
    return by_option


every_conflict = pytest.mark.parametrize("wanted", CONFLICTS.values(), ids=list(CONFLICTS))


@every_conflict
def test_a_conflict_names_everybody_with_distribution_version_file_and_line(
    conflict_of: Callable[..., Plan], wanted: list[list[Any]]
) -> None:
    refusals = conflict_of(wanted).refusals

    told = "\n".join(map(str, refusals))
    assert refusals
    for n in range(len(wanted)):
        assert f"quirk-{n} (dist-{n} {n}.5, pack_{n}/file.py:{10 + n})" in told
    assert all(refusal.kind == "conflict" and refusal.slot in refusal.reason for refusal in refusals)


@every_conflict
def test_every_value_that_is_wanted_is_in_the_message(conflict_of: Callable[..., Plan], wanted: list[list[Any]]) -> None:
    told = " ".join(refusal.reason for refusal in conflict_of(wanted).refusals)

    wishes = re.findall(r"(quirk-\d) \([^)]*\) wants ([\w.]+) = ('?\w+'?)", told)
    assert {quirk for quirk, _, _ in wishes} == {f"quirk-{n}" for n in range(len(wanted))}


@every_conflict
def test_nothing_changes_while_there_is_a_conflict(conflict_of: Callable[..., Plan], wanted: list[list[Any]]) -> None:
    assert conflict_of(wanted).changes == {}


@every_conflict
def test_every_switch_that_is_named_settles_its_conflict(conflict_of: Callable[..., Plan], wanted: list[list[Any]]) -> None:
    first = conflict_of(wanted).refusals[0]

    for off in ways_out(first):
        left = conflict_of(wanted, off)

        assert [refusal.slot for refusal in left.refusals if refusal.reason == first.reason or refusal.slot == first.slot] == []


@every_conflict
def test_a_switch_that_is_named_leaves_somebody_on(conflict_of: Callable[..., Plan], wanted: list[list[Any]]) -> None:
    for refusal in conflict_of(wanted).refusals:
        for off in ways_out(refusal):
            assert set(off) < {quirk.id for quirk in refusal.quirks}


@pytest.mark.parametrize("kinds", [("replacement", "wrapper", "wrapper"), ("replacement", "replacement", "replacement")])
def test_the_switches_of_a_contested_target_settle_it(
    conflict_of: Callable[..., Plan], write_modules: Callable[[dict[str, str]], None], kinds: tuple[str, ...]
) -> None:
    write_modules({"fake_engine.py": "def step():\n    return 1\n"})
    known = fingerprint("fake_engine:step")
    wanted = [[Patch("fake_engine:step", **{kind: f"mine:{n}"}, expects=known)] for n, kind in enumerate(kinds)]

    (refusal,) = conflict_of(wanted).refusals

    assert ways_out(refusal)
    for off in ways_out(refusal):
        left = conflict_of(wanted, off)
        assert (left.refusals, len(left.patches) > 0) == ((), True)


def test_a_quirk_that_contradicts_itself_is_named_with_its_own_switch(conflict_of: Callable[..., Plan]) -> None:
    wanted = [[Default("engine.seed", 1), Default("engine.seed", 2)]]

    (refusal,) = conflict_of(wanted).refusals

    assert ways_out(refusal) == [["quirk-0"]]
    assert conflict_of(wanted, ["quirk-0"]).refusals == ()


def test_defaults_below_a_requirement_on_one_key_are_no_conflict(conflict_of: Callable[..., Plan]) -> None:
    plan = conflict_of([[Require(MAPPING, {"a": 1})], [Default(MAPPING, {"a": 2})], [Default(MAPPING, {"a": 3})]])

    assert (plan.refusals, plan.changes) == ((), {MAPPING: {"a": 1}})
