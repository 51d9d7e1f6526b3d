"""Presets of facts about trainers: found by variable or by import, made of slots that exist, and typed by nobody."""

from __future__ import annotations

from typing import get_args

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.configuration.sections import Framework
from quirks_core.configuration.slots import SLOTS, checked_value
from quirks_core.facts.trainers import TRAINERS, VARIABLE, find, numerics


def test_a_configuration_may_name_each_trainer():
    assert set(TRAINERS) == set(get_args(Framework))


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=lambda trainer: trainer.name)
def test_presets_are_values_of_slots_with_their_source(trainer):
    repository, version = trainer.source.split()

    assert {slot: checked_value(slot, value) for slot, value in {**trainer.facts, **trainer.numerics}.items()}.keys() <= set(
        SLOTS
    )
    assert "refit.scope" in trainer.facts
    assert not trainer.numerics.keys() & trainer.facts.keys()
    assert repository.count("/") == 1
    assert len(version) == 40 or version.count(".") == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ms-swift", r"how ms-swift computes by default is unknown \(known: .*trl"),
        ("tlr", r"there is no trainer 'tlr'; did you mean 'trl'\?"),
    ],
)
def test_numerics_that_were_not_read_are_an_error(name, words):
    with pytest.raises(UsageError, match=words):
        numerics(name)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_found_by_its_variable_or_its_modules(name):
    """The variable is stronger; what several trainers fit is none, but for a library that one of them builds on."""
    trainer = TRAINERS[name]

    assert find({VARIABLE: name}, {"trl", "swift"}) is trainer
    assert all(find({VARIABLE: ""}, {"vllm": 1, module: 1}) is trainer for module in trainer.modules)
    assert all(find({}, {"trl": 1, module: 1}) is trainer for module in trainer.modules)
    assert (find({}, {"vllm"}), find({}, {"verl", "openrlhf"})) == (None, None)


def test_verl_sends_its_state_dict_and_openrlhf_its_parameters():
    assert [TRAINERS[name].facts["refit.scope"] for name in ("verl", "openrlhf")] == ["state_dict", "parameters"]
