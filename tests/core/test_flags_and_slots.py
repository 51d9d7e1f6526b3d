"""Flags and slots: closed lists, and errors that name the nearest one."""

from __future__ import annotations

import pytest

from quirks_core import SLOTS, ModelFlag, Slot, UsageError
from quirks_core.errors import nearest
from quirks_core.flags import flag_name
from quirks_core.slots import checked_value, find_slot


@pytest.mark.parametrize("spelling", [ModelFlag.LOAD_FORMAT, "load_format", "LOAD_FORMAT", "Load_Format"])
def test_a_flag_is_found_in_any_case(spelling: str) -> None:
    assert flag_name(spelling) == "load_format"


def test_a_third_party_may_name_its_own_flag() -> None:
    assert flag_name("my-quirks:rope_scaling") == "my-quirks:rope_scaling"


def test_an_unknown_flag_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'load_format'"):
        flag_name("LOAD_FROMAT")


@pytest.mark.parametrize("name", ["", ":x", "dist:", "dist:Upper Case", "no colon here"])
def test_a_flag_of_ones_own_needs_distribution_and_name(name: str) -> None:
    with pytest.raises(UsageError, match="unknown flag"):
        flag_name(name)


def test_every_flag_is_its_own_name_in_lower_case() -> None:
    assert all(flag == flag.name.lower() for flag in ModelFlag)


def test_slots_are_listed_in_alphabetical_order() -> None:
    assert list(SLOTS) == sorted(SLOTS)


def test_the_list_of_slots_is_closed() -> None:
    with pytest.raises(TypeError):
        SLOTS["engine.mine"] = Slot("engine.mine", int, "mine")


def test_an_unknown_slot_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown slot 'engine\.load_fromat'; did you mean 'engine\.load_format'"):
        find_slot("engine.load_fromat")


def test_the_last_part_of_a_slot_alone_finds_it() -> None:
    assert nearest("load_format", SLOTS) == "; did you mean 'engine.load_format'?"


def test_nothing_is_suggested_where_nothing_comes_close() -> None:
    assert nearest("zzz", SLOTS) == ""


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        ("engine.enforce_eager", True),
        ("engine.seed", 0),
        ("engine.gpu_memory_utilization", 0.9),
        ("engine.gpu_memory_utilization", 1),
        ("engine.load_format", "anything"),
        ("engine.runtime", "v1"),
        ("env.VLLM_USE_V1", "0"),
    ],
)
def test_a_slot_takes_a_value_of_its_type(slot: str, value: object) -> None:
    assert checked_value(slot, value) == value


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        ("engine.enforce_eager", 1),
        ("engine.enforce_eager", None),
        ("engine.seed", True),
        ("engine.seed", 1.0),
        ("engine.gpu_memory_utilization", False),
        ("engine.gpu_memory_utilization", "0.9"),
        ("env.VLLM_USE_V1", 0),
    ],
)
def test_a_slot_refuses_a_value_of_another_type(slot: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{slot} takes a value of type"):
        checked_value(slot, value)


def test_a_slot_with_choices_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'raw_logprobs'"):
        checked_value("engine.logprobs_mode", "raw_logprob")


def test_every_choice_of_a_slot_suits_the_slot() -> None:
    assert [slot.name for slot in SLOTS.values() for choice in slot.choices if slot.problem(choice)] == []
