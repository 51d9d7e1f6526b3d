"""Matchers: Kleene's three values, unknown never silent, and the leaf that decided."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quirks_core import (
    Answer,
    DeclarationError,
    Fact,
    Match,
    environment,
    model_name,
    model_type,
    package,
    platform,
    purpose,
    setting,
    typed,
)
from quirks_core.declaration import decode, encode
from quirks_core.match import UNKNOWN, All, AnyOf, is_plain
from quirks_core.trace import Leaf

YES, NO, UNK = Answer.YES, Answer.NO, Answer.UNKNOWN


class Facts(dict[str, Any]):
    """Facts written down; what is not there nobody can tell."""

    def fact(self, name: str) -> Any:
        """Returns the fact."""
        return self.get(name, UNKNOWN)


FACTS = Facts(yes=True, no=False)
LEAVES: dict[Answer, Match] = {YES: Fact("yes").is_true(), NO: Fact("no").is_true(), UNK: Fact("missing").is_true()}
ANSWERS = st.sampled_from(Answer)


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        (YES, YES, YES),
        (YES, NO, NO),
        (YES, UNK, UNK),
        (NO, YES, NO),
        (NO, NO, NO),
        (NO, UNK, NO),
        (UNK, YES, UNK),
        (UNK, NO, NO),
        (UNK, UNK, UNK),
    ],
)
def test_and_follows_kleene(left: Answer, right: Answer, both: Answer) -> None:
    assert (LEAVES[left] & LEAVES[right]).trace(FACTS).answer is both


@pytest.mark.parametrize(
    ("left", "right", "either"),
    [
        (YES, YES, YES),
        (YES, NO, YES),
        (YES, UNK, YES),
        (NO, YES, YES),
        (NO, NO, NO),
        (NO, UNK, UNK),
        (UNK, YES, YES),
        (UNK, NO, UNK),
        (UNK, UNK, UNK),
    ],
)
def test_or_follows_kleene(left: Answer, right: Answer, either: Answer) -> None:
    assert (LEAVES[left] | LEAVES[right]).trace(FACTS).answer is either


@pytest.mark.parametrize(("answer", "inverse"), [(YES, NO), (NO, YES), (UNK, UNK)])
def test_not_follows_kleene(answer: Answer, inverse: Answer) -> None:
    assert (~LEAVES[answer]).trace(FACTS).answer is inverse


@given(ANSWERS, ANSWERS)
def test_not_turns_and_into_or(left: Answer, right: Answer) -> None:
    a, b = LEAVES[left], LEAVES[right]

    assert (~(a & b)).trace(FACTS).answer is (~a | ~b).trace(FACTS).answer


@given(ANSWERS, ANSWERS, st.sampled_from([operator.and_, operator.or_]))
def test_the_order_of_the_parts_does_not_change_the_answer(left: Answer, right: Answer, join: Callable[..., Match]) -> None:
    assert join(LEAVES[left], LEAVES[right]).trace(FACTS).answer is join(LEAVES[right], LEAVES[left]).trace(FACTS).answer


def test_and_of_nothing_holds() -> None:
    trace = All().trace(FACTS)

    assert (trace.answer, trace.leaves, trace.decisive) == (YES, (), None)


def test_or_of_nothing_does_not_hold() -> None:
    assert AnyOf(()).trace(FACTS).answer is NO


@pytest.mark.parametrize(
    "condition",
    [
        Fact("missing").one_of("a"),
        Fact("missing").any_in("a"),
        Fact("missing").above(1),
        Fact("missing").differs_from(1),
        Fact("missing").indivisible_by(2),
        Fact("missing").matches("a"),
        Fact("missing").is_true(),
        Fact("missing").is_set(),
        Fact("missing").is_not_empty(),
        package("missing", fixed="1.0"),
    ],
)
def test_every_condition_on_a_fact_that_nobody_can_tell_is_unknown(condition: Match) -> None:
    trace = condition.trace(FACTS)

    assert trace.answer is UNK
    assert str(trace.decisive).endswith("got unknown")


@pytest.mark.parametrize(
    "condition",
    [Fact("open").one_of("a"), Fact("open").above(1), Fact("open").matches("a"), Fact("open").is_true(), Fact("open").is_set()],
)
def test_a_fact_that_is_known_to_be_absent_is_a_no(condition: Match) -> None:
    assert condition.trace(Facts(open=None)).answer is NO


@pytest.mark.parametrize("condition", [Fact("it").above(1), Fact("it").any_in("a")])
def test_a_fact_of_an_unexpected_type_is_unknown_and_shows_its_value(condition: Match) -> None:
    trace = condition.trace(Facts(it=object))

    assert (trace.answer, trace.decisive.got) == (UNK, object)


def test_a_pattern_on_a_number_is_unknown() -> None:
    assert Fact("it").matches("1").trace(Facts(it=1)).answer is UNK


@pytest.mark.parametrize(
    ("condition", "got", "answer"),
    [
        (Fact("it").one_of("a", "b"), "b", YES),
        (Fact("it").one_of("a", "b"), "c", NO),
        (Fact("it").any_in("a", "b"), ["x", "b"], YES),
        (Fact("it").any_in("a", "b"), ["x"], NO),
        (Fact("it").above(1), 2, YES),
        (Fact("it").above(1), 1, NO),
        (Fact("it").matches("gemma-?3"), "google/Gemma-3-27b", YES),
        (Fact("it").matches("gemma-?3"), "qwen3", NO),
        (Fact("it").is_true(), False, NO),
        (Fact("it").is_set(), "", YES),
        (Fact("it").is_set(), 0, YES),
        (Fact("it").is_not_empty(), (), NO),
        (Fact("it").is_not_empty(), ("a",), YES),
    ],
)
def test_a_condition_compares_the_fact(condition: Match, got: object, answer: Answer) -> None:
    assert condition.trace(Facts(it=got)).answer is answer


def test_a_leaf_says_fact_wanted_and_got() -> None:
    leaf = Fact("model.model_type").one_of("gemma", "gemma2").trace(Facts({"model.model_type": "qwen3"})).decisive

    assert str(leaf) == "model.model_type: wanted gemma or gemma2, got qwen3"


def test_a_trace_shows_every_leaf_even_those_after_the_answer_is_clear() -> None:
    trace = (LEAVES[NO] & LEAVES[YES] & LEAVES[UNK]).trace(FACTS)

    assert [leaf.fact for leaf in trace.leaves] == ["no", "yes", "missing"]


def test_the_decisive_leaf_of_an_and_is_the_one_that_fails() -> None:
    assert (LEAVES[YES] & LEAVES[UNK] & LEAVES[NO]).trace(FACTS).decisive.fact == "no"


def test_the_decisive_leaf_of_an_undecided_and_is_the_unknown_one() -> None:
    assert (LEAVES[YES] & LEAVES[UNK]).trace(FACTS).decisive.fact == "missing"


def test_the_decisive_leaf_of_an_or_is_the_one_that_holds() -> None:
    assert (LEAVES[NO] | LEAVES[UNK] | LEAVES[YES]).trace(FACTS).decisive.fact == "yes"


def test_the_decisive_leaf_is_found_through_nesting() -> None:
    assert (LEAVES[YES] & ~(LEAVES[NO] | LEAVES[YES])).trace(FACTS).decisive.fact == "yes"


def test_a_negated_leaf_keeps_its_own_answer() -> None:
    assert (~LEAVES[NO]).trace(FACTS).leaves == (Leaf("no", "true", False, NO),)


@pytest.mark.parametrize(
    ("condition", "a", "b", "answer"),
    [
        (Fact("a").above(Fact("b")), 4, 2, YES),
        (Fact("a").above(Fact("b")), 2, 2, NO),
        (Fact("a").below(Fact("b")), 1, 2, YES),
        (Fact("a").below(Fact("b")), 2, 2, NO),
        (Fact("a").differs_from(Fact("b")), 1, 2, YES),
        (Fact("a").differs_from(Fact("b")), 2, 2, NO),
        (Fact("a").differs_from("x"), "y", None, YES),
        (Fact("a").differs_from("x"), "x", None, NO),
        (Fact("a").indivisible_by(Fact("b")), 6, 4, YES),
        (Fact("a").indivisible_by(Fact("b")), 8, 4, NO),
        (Fact("a").indivisible_by(3), 4, None, YES),
        (Fact("a").indivisible_by(3), 6, None, NO),
    ],
)
def test_a_fact_is_compared_with_a_constant_or_another_fact(condition: Match, a: object, b: object, answer: Answer) -> None:
    assert condition.trace(Facts(a=a, b=b)).answer is answer


OF_TWO_FACTS = [
    Fact("a").above(Fact("b")),
    Fact("a").below(Fact("b")),
    Fact("a").differs_from(Fact("b")),
    Fact("a").indivisible_by(Fact("b")),
]


@pytest.mark.parametrize("condition", OF_TWO_FACTS, ids=lambda condition: condition.operator)
@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        (Facts(a=3), UNK),
        (Facts(b=3), UNK),
        (Facts(), UNK),
        (Facts(a=3, b=None), NO),
        (Facts(a=None, b=3), NO),
        (Facts(a=None), NO),
        (Facts(b=None), NO),
        (Facts(a=None, b=None), NO),
    ],
    ids=[
        "b unknown",
        "a unknown",
        "both unknown",
        "b absent",
        "a absent",
        "a absent, b unknown",
        "b absent, a unknown",
        "none",
    ],
)
def test_of_two_facts_an_absent_one_is_a_no_and_an_unknown_one_unknown(condition: Match, facts: Facts, answer: Answer) -> None:
    assert condition.trace(facts).answer is answer


@pytest.mark.parametrize(
    ("condition", "facts", "words"),
    [
        (
            Fact("parallel.expert_parallel_size").indivisible_by(setting("engine.tensor_parallel_size")),
            {"parallel.expert_parallel_size": 6, "engine.tensor_parallel_size": 4},
            "parallel.expert_parallel_size: wanted not a multiple of engine.tensor_parallel_size = 4, got 6",
        ),
        (Fact("a").above(Fact("b")), {"a": 1, "b": 2}, "a: wanted > b = 2, got 1"),
        (Fact("a").differs_from(Fact("b")), {"a": 1, "b": 2}, "a: wanted other than b = 2, got 1"),
        (Fact("a").below(Fact("b")), {"a": 1}, "a: wanted < b = unknown, got 1"),
        (Fact("a").below(Fact("b")), {"b": 2}, "a: wanted < b = 2, got unknown"),
        (Fact("a").below(Fact("b")), {"a": 1, "b": None}, "a: wanted < b = nothing, got 1"),
    ],
)
def test_a_leaf_of_two_facts_says_name_and_value_of_both(condition: Match, facts: dict[str, Any], words: str) -> None:
    assert str(condition.trace(Facts(facts)).decisive) == words


@pytest.mark.parametrize(("a", "b"), [(4, 0), ("text", 2), (4, "text"), ([], 3)])
def test_facts_that_cannot_be_divided_are_unknown(a: object, b: object) -> None:
    assert Fact("a").indivisible_by(Fact("b")).trace(Facts(a=a, b=b)).answer is UNK


@pytest.mark.parametrize("condition", OF_TWO_FACTS, ids=lambda condition: condition.operator)
def test_a_condition_on_two_facts_is_data_that_names_both(condition: Match) -> None:
    copy = decode(json.loads(json.dumps(encode(condition))))

    assert copy == condition
    assert copy.trace(Facts(a=6, b=4)) == condition.trace(Facts(a=6, b=4))
    assert list((condition & ~condition).facts()) == ["a", "b"] * 2
    assert is_plain(condition)
    assert condition != type(condition)("a", condition.operator, "b")


@pytest.mark.parametrize("word", ["one_of", "any_in", "matches", "is_true", "is_set"])
def test_an_operator_that_takes_no_fact_says_which_do(word: str) -> None:
    condition = type(Fact("a").is_set())

    with pytest.raises(DeclarationError, match=r"on a: .*(takes no fact \(b\); above, below, differs_from|is no pattern)"):
        condition("a", word, Fact("b"))


@pytest.mark.parametrize("function", [setting, typed])
def test_an_unknown_slot_in_a_match_is_an_error_with_the_nearest_name(function: Callable[[str], object]) -> None:
    with pytest.raises(DeclarationError, match=r"did you mean 'engine\.load_format'"):
        function("engine.load_fromat")


@pytest.mark.parametrize(
    ("condition", "facts"),
    [
        (model_type("qwen3"), {"model.model_type": "qwen3"}),
        (model_name("QWEN"), {"model.name": "Qwen/Qwen3-0.6B"}),
        (platform("cpu", "xpu"), {"platform": "xpu"}),
        (purpose("rollout"), {"purpose": "rollout"}),
        (environment("VLLM_USE_V1").one_of("0"), {"env.VLLM_USE_V1": "0"}),
        (setting("engine.seed").one_of(0), {"engine.seed": 0}),
        (typed("engine.seed"), {"typed.engine.seed": True}),
        (package("vllm", introduced="0.9", fixed="0.10"), {"packages.vllm": "0.9.2"}),
    ],
)
def test_each_named_matcher_asks_for_its_fact(condition: Match, facts: dict[str, Any]) -> None:
    assert condition.trace(Facts(facts)).answer is YES
