"""Which quirks cover a setting, in which state they are in the user's plan, and what the user does to have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quirks_core import Default, ModelFlag, Quirk, Require, Severity, model_type, purpose, report, setting
from quirks_core.discovery import discover
from quirks_core.registry import Registry
from quirks_core.switches import Switches, Wishes
from quirks_core.versions import Affected
from worker.parity.coverage import covering, covers

PROCESSED = "rollout-logprobs-processed"
MODE = ("engine.logprobs_mode", "processed_logprobs")


def quirk(name: str, *adjustments: Any, **fields: Any) -> Quirk:
    """A quirk of every rollout, unless it says otherwise."""
    given = {"match": purpose("rollout"), "affected": (), **fields}
    return Quirk(
        id=name,
        title="-",
        flag=ModelFlag.RUNTIME,
        adjustments=adjustments,
        severity=Severity.WRONG_OUTPUT,
        references=(report("https://example.org"),),
        **given,
    )


@pytest.fixture
def covered(quirk_registry, quirk_context) -> Callable[..., list[tuple[str, str, str, str]]]:
    """What covers a setting in a run with some quirks."""

    def ask(setting: str, value: Any, *quirks: Quirk, **options: Any) -> list[tuple[str, str, str, str]]:
        switches = {name: options.pop(name) for name in ("disable", "force") if name in options}
        registry = quirk_registry.add(*quirks)
        plan = registry.resolve(quirk_context(**options), **switches)
        return [(found.id, found.state, found.because, found.switch) for found in covering(setting, value, plan, registry)]

    return ask


def test_a_default_that_the_user_typed_over_says_what_to_remove(covered):
    ((name, state, because, switch),) = covered(
        *MODE, quirk("a", Default(*MODE)), settings={"engine.logprobs_mode": "raw_logprobs"}
    )

    assert (name, state) == ("a", "active")
    assert because == "the user typed 'raw_logprobs', which wins over a default"
    assert switch == "remove engine.logprobs_mode: raw_logprobs from your configuration"


def test_a_truth_value_to_remove_is_written_as_in_yaml(covered):
    ((_, _, _, switch),) = covered(
        "engine.enforce_eager",
        True,
        quirk("a", Default("engine.enforce_eager", True)),
        settings={"engine.enforce_eager": False},
    )

    assert switch == "remove engine.enforce_eager: false from your configuration"


@pytest.mark.parametrize(
    ("layer", "where"),
    [
        ({"config_file": Wishes([PROCESSED])}, f"remove '{PROCESSED}' from the configuration (quirks.disable)"),
        ({"command_line": Wishes([PROCESSED])}, f"remove '{PROCESSED}' from the command line (--disable)"),
        ({"api": Wishes(["logprobs"])}, "remove 'logprobs' from the call (disable=)"),
        ({"environ": {"MODEL_QUIRKS_DISABLE": "all"}}, "remove 'all' from the environment (MODEL_QUIRKS_DISABLE)"),
    ],
)
def test_a_quirk_that_is_switched_off_says_which_switch_to_remove_and_where(layer, where, quirk_context):
    registry = Registry.load([item for item in discover() if item.name == PROCESSED])
    switches = Switches.gather(**{"environ": {}, **layer})
    plan = registry.resolve(quirk_context(packages={"vllm": "0.32.0"}), switches)

    (found,) = covering(*MODE, plan, registry)

    assert (found.id, found.state, found.switch) == (PROCESSED, "disabled", where)


def test_a_quirk_that_is_switched_off_where_the_user_typed_the_contrary_takes_both_to_be_removed(covered):
    scope = quirk("a", Require("refit.scope", "state_dict"))

    ((_, state, _, switch),) = covered(
        "refit.scope", "state_dict", scope, settings={"refit.scope": "parameters"}, disable=["a"]
    )

    assert state == "disabled"
    assert switch == "remove 'a' from the call (disable=), and remove refit.scope: parameters from your configuration"


def test_a_quirk_of_other_runs_says_which_comparison_decides_and_is_no_cover(covered, quirk_registry, quirk_context):
    other = quirk("a", Default(*MODE), match=model_type("gemma3"))

    ((_, state, because, switch),) = covered(*MODE, other, config={"model_type": "qwen3"})

    assert (state, switch) == ("not_matched", "--force a")
    assert because == "model.model_type: wanted gemma3, got qwen3"
    (found,) = covering(*MODE, quirk_registry.resolve(quirk_context(config={"model_type": "qwen3"})), quirk_registry)
    assert not covers(found)


def test_a_quirk_of_other_runs_is_no_cover_because_it_is_switched_off_besides(covered):
    other = quirk("a", Default(*MODE), match=model_type("gemma3"))

    ((_, state, because, switch),) = covered(*MODE, other, config={"model_type": "qwen3"}, disable=["a"])

    assert (state, switch) == ("not_matched", "--force a")
    assert "switched off by 'a'" in because
    assert "model.model_type: wanted gemma3, got qwen3" in because


def test_a_dormant_quirk_says_which_version_ended_it(covered):
    old = quirk("a", Default(*MODE), affected=Affected("vllm", fixed="0.20"))

    ((_, state, because, switch),) = covered(*MODE, old, packages={"vllm": "0.32.0"})

    assert (state, switch) == ("dormant", "--force a")
    assert because == "packages.vllm: wanted < 0.20, got 0.32.0"


def test_an_undecided_quirk_says_which_fact_is_missing(covered):
    ((_, state, because, switch),) = covered(*MODE, quirk("a", Default(*MODE), match=model_type("gemma3")))

    assert (state, switch) == ("unknown", "--force a")
    assert because == "model.model_type: wanted gemma3, got unknown"


def test_a_condition_on_the_one_adjustment_is_told(covered):
    conditional = quirk("a", Default(*MODE, when=setting("sampling.temperature").below(1)))

    ((_, state, because, switch),) = covered(*MODE, conditional, settings={"sampling.temperature": 1.0})

    assert (state, switch) == ("active", "")
    assert because == "its condition on engine.logprobs_mode does not hold: sampling.temperature: wanted < 1, got 1.0"


def test_a_default_that_was_outranked_says_by_whom(covered):
    strong = quirk("b", Require("engine.logprobs_mode", "raw_logprobs"))

    ((name, state, because, _),) = covered(*MODE, quirk("a", Default(*MODE)), strong)

    assert (name, state) == ("a", "active")
    assert because == "a requirement on the same slot wins: b sets 'raw_logprobs'"


def test_only_the_value_that_was_tried_counts(covered):
    other = quirk("a", Default("engine.logprobs_mode", "raw_logprobs"))

    assert covered(*MODE, other) == []


def test_a_value_that_depends_on_the_run_is_computed_and_one_that_cannot_be_covers_nothing(covered):
    def long(context: Any) -> str:
        return "processed_logprobs" if context.model.model_type == "qwen3" else "raw_logprobs"

    def broken(_: Any) -> str:
        raise KeyError("none of mine")

    quirks = (
        quirk("a", Default("engine.logprobs_mode", long)),
        quirk("b", Default("engine.logprobs_mode", broken), match=model_type("gemma3")),
    )

    found = covered(*MODE, *quirks, config={"model_type": "qwen3"})

    assert [name for name, *_ in found] == ["a"]


def test_each_part_of_a_combination_is_covered_and_what_helps_soonest_comes_first(covered):
    quirks = (
        quirk("a", Default("engine.enforce_eager", True), match=model_type("gemma3")),
        quirk("b", Default("engine.enforce_eager", True)),
        quirk("c", Default(*MODE)),
    )

    found = covered(
        "engine.logprobs_mode + engine.enforce_eager + quirk c",
        ["processed_logprobs", True, "active"],
        *quirks,
        config={"model_type": "qwen3"},
        disable=["c"],
    )

    assert [(name, state) for name, state, *_ in found] == [("c", "disabled"), ("b", "active"), ("a", "not_matched")]


def test_a_quirk_that_was_switched_on_is_its_own_cover(covered):
    found = covered("quirk a", "active", quirk("a", Default(*MODE)), disable=["a"])

    assert [(name, state) for name, state, *_ in found] == [("a", "disabled")]


def test_a_quirk_that_another_one_replaces_says_so(covered):
    new = quirk("b", Require("engine.enforce_eager", True), supersedes=("a",))

    ((name, state, because, _),) = covered(*MODE, quirk("a", Default(*MODE)), new)

    assert (name, state) == ("a", "superseded")
    assert because.startswith("superseded by b")
