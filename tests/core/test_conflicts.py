"""A conflict names everybody with distribution, version, file and line, and the switch that it names settles it."""

from __future__ import annotations

import re

import pytest

from quirks_core import Default, Require
from quirks_core.declaration.quirk import Location
from quirks_core.plan.records import Status
from quirks_core.plan.resolve import resolve
from quirks_core.plan.switches import Switches, SwitchNames

SLOT, MAPPING, STOPS = "engine.load_format", "engine.hf_overrides", "sampling.stop_token_ids"
#: What several quirks want, each given as a list of adjustments, in order of their ids.
CONFLICTS = {
    "two defaults": [[Default(SLOT, "auto")], [Default(SLOT, "dummy")]],
    "three quirks with two requirements": [[Require(SLOT, "auto")], [Require(SLOT, "dummy")], [Require(SLOT, "auto")]],
    "three values of an argument": [[Default("engine.any_argument", number)] for number in (0, 1, True)],
    "two variables": [[Require("env.NAME", "0")], [Require("env.NAME", "1")]],
    "two bounds": [[Require("engine.seed", at_most=1)], [Require("engine.seed", at_least=2)]],
    "a bound and a value": [[Require("engine.seed", at_most=1)], [Require("engine.seed", 2)]],
    "two choices": [[Default(SLOT, one_of=["a", "b"])], [Default(SLOT, one_of=["c"])]],
    "a list and a member": [[Require(STOPS, [1])], [Require(STOPS, includes=[2])]],
    "one key of a mapping": [[Default(MAPPING, {"a": {"b": 1}})], [Default(MAPPING, {"a": {"b": 2}})]],
    "a key and two keys far below it": [
        [Require(MAPPING, {"a": 1})],
        [Require(MAPPING, {"a": {"b": {"c": 1}}})],
        [Require(MAPPING, {"a": {"b": {"d": 1}}})],
    ],
    "a requirement and a default below it": [[Require(MAPPING, {"a": 1})], [Default(MAPPING, {"a": {"b": 1}})]],
}


@pytest.fixture
def conflict_of(make_context, make_quirk, loaded):
    """Resolves quirks of different distributions, with some of them switched off."""

    def make(wanted, off=()):
        items = [
            loaded(
                make_quirk(id=f"quirk-{n}", adjustments=adjustments, location=Location(f"pack_{n}/file.py", 10 + n)),
                f"dist-{n}",
                f"{n}.5",
            )
            for n, adjustments in enumerate(wanted)
        ]
        context = make_context(packages={"vllm": "0.32.0", "fake-engine": "1.0"})
        return resolve(context, items, Switches.gather(command_line=SwitchNames(off), environ={}))

    return make


def ways_out(refusal):
    """The alternatives that a refusal's switch names, each as the ids to switch off."""
    by_option = [re.findall(r"--disable (\S+)", way) for way in re.split(r"\) or ", refusal.switch)]
    by_key = [found.split(", ") for found in re.findall(r"quirks\.disable: \[(.*?)\]", refusal.switch)]
    assert by_option == by_key
    return by_option


@pytest.mark.parametrize("wanted", CONFLICTS.values(), ids=list(CONFLICTS))
def test_a_conflict_names_everybody_with_switches_to_settle_it(conflict_of, wanted):
    plan = conflict_of(wanted)

    listed = "\n".join(map(str, plan.refusals))
    assert plan.refusals
    assert plan.changes == {}
    assert {item.status for item in plan.adjustments} == {Status.CONFLICT}
    for n in range(len(wanted)):
        assert f"quirk-{n} (dist-{n} {n}.5, pack_{n}/file.py:{10 + n})" in listed
        assert re.search(rf"quirk-{n} wants \S+ (=|≤|≥|one of|includes) \S", listed)
    for refusal in plan.refusals:
        assert (refusal.kind, refusal.slot in refusal.reason) == ("conflict", True)
        for off in ways_out(refusal):
            assert set(off) < {quirk.id for quirk in refusal.quirks}
            assert refusal.slot not in {left.slot for left in conflict_of(wanted, off).refusals}


def test_a_quirk_that_contradicts_itself_is_named(conflict_of):
    wanted = [[Default("engine.seed", 1), Default("engine.seed", 2)]]

    (refusal,) = conflict_of(wanted).refusals

    assert ways_out(refusal) == [["quirk-0"]]
    assert conflict_of(wanted, ["quirk-0"]).refusals == ()
