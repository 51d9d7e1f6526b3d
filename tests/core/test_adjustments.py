"""What a quirk can ask for: one relation between a slot and an operand, checked where it is declared."""

from __future__ import annotations

import itertools

import pytest

from quirks_core import Default, Patch, Require
from quirks_core.base.errors import DeclarationError
from quirks_core.declaration.adjustments import Relation, holds

TARGET = "vllm.module:attribute"
EQUALS, AT_MOST, AT_LEAST, ONE_OF, INCLUDES = Relation
EACH = pytest.mark.parametrize("kind", [Default, Require])


@EACH
@pytest.mark.parametrize(
    ("slot", "given", "relation", "operand"),
    [
        ("engine.hf_overrides", {"value": {"a": None}}, EQUALS, {"a": None}),
        ("env.NCCL_NVLS_ENABLE", {"value": "0"}, EQUALS, "0"),
        ("engine.max_model_len", {"at_most": 8}, AT_MOST, 8),
        ("request.timeout_s", {"at_least": 600}, AT_LEAST, 600.0),
        ("request.timeout_s", {"one_of": (60, 600)}, ONE_OF, [60.0, 600.0]),
        ("sampling.stop_token_ids", {"includes": (2, 1)}, INCLUDES, [2, 1]),
    ],
)
def test_an_adjustment_relates_a_slot_to_a_copy_of_an_operand(kind, slot, given, relation, operand):
    adjustment = kind(slot, **given)

    assert (adjustment.relation, adjustment.operand) == (relation, operand)
    assert adjustment == kind(slot, **given)
    assert not isinstance(operand, dict | list) or adjustment.operand is not next(iter(given.values()))


@EACH
@pytest.mark.parametrize(
    ("slot", "given", "words"),
    [
        *(("engine.seed", given, "give one of a value") for given in ({}, {"one_of": [1], "includes": [1]})),
        ("refit.scop", {"value": "parameters"}, r"did you mean 'refit\.scope'"),
        ("refit.scop", {"value": lambda context: context.purpose}, "unknown slot"),
        ("engine.seed", {"value": 1, "when": "always"}, r"when must be made by quirks_core\.declaration\.match, not 'always'"),
        ("engine.seed", {"value": 1, "reason": b"no"}, "reason must be a text"),
        ("engine.seed", {"value": None}, "takes a whole number, not None"),
        ("engine.load_format", {"at_most": "b"}, "takes a text, which has no bounds"),
        ("engine.any_argument", {"at_most": True}, "has no bounds"),
        ("engine.seed", {"includes": [1]}, "takes a whole number, which has no members"),
        ("sampling.stop_token_ids", {"includes": 1}, "takes a list of whole numbers, not 1"),
        ("engine.load_format", {"one_of": []}, r"one_of takes a list of values, not \[\]"),
        ("engine.load_format", {"one_of": ["auto", 3]}, "takes a text, not 3"),
    ],
)
def test_a_relation_that_cannot_be_is_an_error_at_once(kind, slot, given, words):
    with pytest.raises(DeclarationError, match=words):
        kind(slot, **given)


@pytest.mark.parametrize(
    ("target", "given", "words"),
    [
        *((text, {"replacement": "mine:new", "expects": "0" * 12}, "not of the form") for text in ("a.b", ":c")),
        (TARGET, {"wrapper": "mine", "expects": "0" * 12}, "'mine' is not of the form"),
        (TARGET, {"expects": "0" * 12}, "give one of a wrapper, a replacement and adds="),
        (TARGET, {"wrapper": "m:a"}, r"name the fingerprints it was written against \(quirks fingerprint vllm"),
        (TARGET, {"replacement": "m:a", "expects": ("0" * 12, "absent")}, "'absent' in expects is no fingerprint"),
        (TARGET, {"adds": "m:a", "expects": "0" * 12}, "what is added has no source before, so leave expects out"),
    ],
)
def test_a_patch_is_checked_where_it_is_declared(target, given, words):
    with pytest.raises(DeclarationError, match=words):
        Patch(target, **given)


@pytest.mark.parametrize(
    ("relation", "operand", "value", "answer"),
    [
        (EQUALS, {"a": [1, {"b": None}]}, {"a": [1.0, {"b": None}]}, True),
        (EQUALS, {"a": [1]}, {"a": [True]}, False),
        *((EQUALS, one, other, False) for one, other in ([[1], [1, 2]], [{"a": 1}, {"b": 1}], [0, ""], [1, "1"])),
        *((EQUALS, one, other, False) for one, other in itertools.permutations([{"a": 1}, {"a": 1, "b": 2}])),
        (AT_MOST, 8, 8, True),
        (AT_MOST, 8, 8.5, False),
        (AT_MOST, 8, True, False),
        (AT_LEAST, 8, 8, True),
        (AT_LEAST, 0, "1", False),
        (ONE_OF, [1, "a"], 1.0, True),
        (ONE_OF, [1, "a"], True, False),
        (INCLUDES, [1, 2], [3, 2, 1], True),
        (INCLUDES, [1, 2], [2], False),
        (INCLUDES, [1], [True], False),
        (INCLUDES, ["a"], "ab", False),
    ],
)
def test_a_relation_holds_or_does_not_also_where_it_cannot(relation, operand, value, answer):
    assert holds(relation, operand, value) is answer
