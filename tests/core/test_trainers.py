"""Presets of facts about trainers: found by variable or by import, made of slots that exist, and typed by nobody."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.slots import SLOTS, checked_value
from quirks_core.facts.trainers import TRAINERS, VARIABLE, find, numerics
from quirks_core.plugins.planning import make_plan

NAMES = ("trl", "verl", "nemo-rl", "openrlhf", "skyrl", "prime-rl", "ms-swift", "pipeline-rl")


def test_the_trainers_are_those_that_the_variable_promises():
    assert tuple(TRAINERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_facts_of_a_trainer_are_values_of_slots(name):
    trainer = TRAINERS[name]

    assert {checked_value(slot, value) is not None for slot, value in trainer.facts.items()} == {True}
    assert set(trainer.facts) <= set(SLOTS)
    assert "refit.scope" in trainer.facts


@pytest.mark.parametrize("name", NAMES)
def test_a_trainer_says_where_its_facts_were_read(name):
    trainer = TRAINERS[name]

    repository, version = trainer.source.split()
    assert repository.count("/") == 1
    assert len(version) == 40 or version.count(".") == 2
    assert trainer.evidence


@pytest.mark.parametrize("name", NAMES)
def test_numerics_are_values_of_slots_that_are_no_facts(name):
    trainer = TRAINERS[name]

    assert {slot: checked_value(slot, value) for slot, value in trainer.numerics.items()} == trainer.numerics
    assert not trainer.numerics.keys() & trainer.facts.keys()


def test_numerics_that_were_not_read_are_unknown():
    with pytest.raises(UsageError, match=r"how ms-swift computes by default is unknown \(known: .*trl"):
        numerics("ms-swift")


def test_numerics_of_an_unknown_trainer_are_an_error_with_the_nearest():
    with pytest.raises(UsageError, match=r"there is no trainer 'tlr'; did you mean 'trl'\?"):
        numerics("tlr")


@pytest.mark.parametrize("name", NAMES)
def test_a_trainer_is_found_by_its_variable_or_by_what_is_imported(name):
    trainer = TRAINERS[name]

    assert find({VARIABLE: name}, ()) is trainer
    assert all(find({}, {"vllm": 1, "torch": 1, module: 1}) is trainer for module in trainer.modules)


def test_nothing_is_found_where_no_trainer_or_several_are_imported():
    assert find({}, {"vllm"}) is None
    assert find({VARIABLE: ""}, {"vllm"}) is None
    assert find({}, {"verl", "openrlhf"}) is None


def test_a_trainer_that_uses_trl_is_found_before_it():
    assert find({}, {"trl", "swift"}) is TRAINERS["ms-swift"]


def test_the_variable_is_stronger_than_imports():
    assert find({VARIABLE: "trl"}, {"trl", "swift"}) is TRAINERS["trl"]


def test_an_unknown_trainer_is_an_error_with_the_nearest():
    with pytest.raises(UsageError, match=r"MODEL_QUIRKS_TRAINER='nemorl': no such trainer; did you mean 'nemo-rl'\?"):
        find({VARIABLE: "nemorl"}, {"trl"})


@pytest.mark.parametrize(("name", "asked"), [("verl", None), ("openrlhf", "state_dict")])
def test_what_a_trainer_sends_decides_whether_a_quirk_asks_for_more(name, asked, model):
    """Gemma-4 after a dummy start: a refit of parameters alone leaves its buffers as noise."""
    config = GenerationConfig.parse({"model": str(model("gemma4")), "engine": {"load_format": "dummy"}})

    config = config.overridden(TRAINERS[name].facts)
    plan = make_plan(config)

    assert config.typed_slots() == {"engine.load_format"}
    assert plan.refusals == ()
    assert plan.changes.get("refit.scope") == asked
