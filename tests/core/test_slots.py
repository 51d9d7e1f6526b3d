"""Slots: closed where the configuration is, open where vLLM and the environment are, and errors that name the nearest one."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError, nearest
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.slots import SLOTS, Place, Slot, checked_value, find_slot, is_slot, placed, slot_named


def test_the_listed_slots_are_the_fields_of_the_sections():
    sections = {name: GenerationConfig.model_fields[name].annotation for name in GenerationConfig.SLOT_SECTIONS}
    fields = {f"{name}.{key}": field.description for name, kind in sections.items() for key, field in kind.model_fields.items()}

    assert {name: slot.help for name, slot in SLOTS.items()} == fields
    assert list(SLOTS) == sorted(SLOTS)
    with pytest.raises(TypeError):
        SLOTS["engine.mine"] = Slot("engine.mine", int)


@pytest.mark.parametrize("name", ["refit.scop", "model.path", "", "engine", "engine.a.b"])
def test_an_unknown_slot_is_an_error_with_the_nearest_name(name):
    assert not is_slot(name)
    with pytest.raises(UsageError, match=r"did you mean 'refit\.scope'" if name == "refit.scop" else f"unknown slot '{name}'"):
        find_slot(name)


def test_the_last_part_of_a_name_is_enough_to_suggest_it():
    assert (nearest("load_format", SLOTS), nearest("zzz", SLOTS)) == ("; did you mean 'engine.load_format'?", "")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("env.HF_TOKEN env.VLLM_API_KEY env.NGC_APIKEY env.AWS_SECRET_ACCESS_KEY env.DB_PASSWORD env.token", "secret"),
        ("engine.hf_token engine.api_key", "the name looks like that of a secret, and plans are kept and shown"),
        ("env.PATH env.PYTHONPATH env.LD_PRELOAD env.DYLD_X env.BASH_ENV env.VLLM_PLUGINS", "chooses the code"),
        ("env.MODEL_QUIRKS_DISABLE env.MODEL_QUIRKS_PLAN env.MODEL_QUIRKS_ANYTHING", "is a switch of model-quirks itself"),
        ("env. env.A=B env.A\0", "cannot be the name of an environment variable"),
    ],
    ids=["secret variables", "secret arguments", "code", "our switches", "impossible"],
)  # fmt: skip
def test_a_name_of_a_secret_or_of_code_is_refused_with_reason(names, reason):
    for name in names.split(" "):
        with pytest.raises(UsageError, match=reason):
            find_slot(name)


VALUES = [
    ("engine.enforce_eager", True, None),
    ("engine.gpu_memory_utilization", 1, None),
    ("sampling.stop_token_ids", (1, 2), None),
    ("engine.hf_overrides", {"a": {"b": [1, None]}}, None),
    ("engine.an_argument_of_vllm_0_50", [1], None),  # a quirk may be for another vLLM
    ("env.TOKENIZERS_PARALLELISM", "0", None),
    ("env.VLLM_MAX_TOKENS", 0, "env.VLLM_MAX_TOKENS takes a text, not 0"),
    ("engine.enforce_eager", 1, "takes true or false, not 1"),
    ("engine.seed", True, "takes a whole number, not True"),
    ("engine.seed", 1.0, "takes a whole number, not 1.0"),
    ("engine.gpu_memory_utilization", 1.5, "takes a number, not 1.5 (input should be less than or equal to 1)"),
    ("request.timeout_s", float("nan"), "takes a number, not nan, which cannot be written as JSON"),
    ("sampling.stop_token_ids", [1, "a"], "takes a list of whole numbers, not [1, 'a']"),
    ("engine.hf_overrides", 5, "takes a mapping, not 5"),
    ("engine.hf_overrides", {"a": object()}, "which is not made of JSON values"),
    ("engine.hf_overrides", {1: 2}, "not made of JSON values with texts as keys"),
    ("engine.hf_overrides", {"a": "\ud800"}, "cannot be written as JSON"),
    ("engine.logprobs_mode", "raw_logprob", "did you mean 'raw_logprobs'"),
]


@pytest.mark.parametrize(("slot", "value", "words"), VALUES)
def test_a_slot_takes_only_values_of_its_type(slot, value, words):
    if words is None:
        assert checked_value(slot, value) == value
        return
    with pytest.raises(UsageError) as caught:
        checked_value(slot, value)
    assert words in str(caught.value)


def test_a_slot_knows_what_its_type_allows():
    names = ("engine.seed", "request.timeout_s", "engine.load_format", "sampling.stop_token_ids", "engine.any", "env.NAME")
    slots = list(map(find_slot, names))

    assert [slot.is_number for slot in slots] == [True, True, False, False, True, False]
    assert [slot.is_list for slot in slots] == [False, False, False, True, True, False]
    assert (find_slot("refit.scope").choices, find_slot("engine.load_format").choices) == (("parameters", "state_dict"), ())
    assert [slot.name for slot in SLOTS.values() for choice in slot.choices if slot.problem(choice)] == []
    assert (type(find_slot("request.timeout_s").plain(600)), type(find_slot("engine.seed").plain(600))) == (float, int)


def test_a_slot_knows_the_place_of_its_key():
    places = {
        "engine.seed": ("engine", "seed", Place.ARGUMENT),
        "engine.hf_overrides.rope_theta": ("engine", "hf_overrides.rope_theta", Place.ARGUMENT),
        "engine.head_dtype": ("engine", "head_dtype", Place.OVERRIDE),
        "engine.generate_from_dummy": ("engine", "generate_from_dummy", Place.WORKER),
        "env.NAME": ("env", "NAME", Place.VARIABLE),
        "refit.scope": ("refit", "scope", Place.OUTSIDE),
        "engine": ("", "", Place.OUTSIDE),
    }
    slots = [*map(slot_named, places), Slot("engine.seed", int)]

    assert [(slot.family, slot.key, slot.place) for slot in slots] == [*places.values(), places["engine.seed"]]
    assert [slot.is_enforced for slot in map(slot_named, places)] == [True, True, True, False, True, False, False]
    assert placed(Place.VARIABLE, dict.fromkeys(places, "1")) == {"NAME": "1"}
