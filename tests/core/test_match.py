"""Matchers: Kleene's three values, unknown never silent, and the leaf that decided."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quirks_core import Fact, environment, model_name, model_type, package, platform, purpose, setting, typed
from quirks_core.base.errors import DeclarationError
from quirks_core.declaration import match
from quirks_core.declaration.examples import Run
from quirks_core.declaration.match import All, AnyOf, Condition
from quirks_core.declaration.operators import OPERATORS
from quirks_core.declaration.trace import Answer, Leaf
from quirks_core.facts.unknown import UNKNOWN

YES, NO, UNK = Answer.YES, Answer.NO, Answer.UNKNOWN


class Facts(dict):
    """Facts written down; what is not there nobody can tell."""

    def fact(self, name):
        """Returns the fact."""
        return self.get(name, UNKNOWN)


FACTS = Facts(yes=True, no=False)
LEAVES = {YES: Fact("yes").is_true(), NO: Fact("no").is_true(), UNK: Fact("missing").is_true()}
#: The answers from weakest to strongest, so that "and" is the least and "or" the greatest of two.
ORDER = [NO, UNK, YES]
IT, A, B = Fact("it"), Fact("a"), Fact("b")


#: Conditions, each with its answer by Kleene's logic.
MATCHES = st.recursive(
    st.sampled_from([(match, answer) for answer, match in LEAVES.items()]),
    lambda parts: (
        st.tuples(parts, parts).map(lambda ab: (ab[0][0] & ab[1][0], min(ab[0][1], ab[1][1], key=ORDER.index)))
        | st.tuples(parts, parts).map(lambda ab: (ab[0][0] | ab[1][0], max(ab[0][1], ab[1][1], key=ORDER.index)))
        | parts.map(lambda a: (~a[0], ORDER[2 - ORDER.index(a[1])]))
    ),
    max_leaves=6,
)


@given(MATCHES)
def test_conditions_follow_kleenes_logic(example):
    match, answer = example

    assert match.trace(FACTS).answer is answer


def test_all_of_nothing_is_true_any_of_nothing_is_not():
    assert (All().trace(FACTS).answer, AnyOf(()).trace(FACTS).answer) == (YES, NO)


#: What each condition says of a fact.
COMPARED = [
    (IT.one_of("a", "b"), {"b": YES, "c": NO}),
    (IT.any_in("a", "b"), {("x", "b"): YES, ("x",): NO, object: UNK}),
    (IT.above(1), {2: YES, 1: NO, object: UNK}),
    (IT.below(1), {0: YES, 1: NO, "text": UNK}),
    (IT.differs_from("x"), {"y": YES, "x": NO}),
    (IT.indivisible_by(3), {4: YES, 6: NO, "text": UNK}),
    (IT.indivisible_by(0), {4: UNK}),
    (IT.matches("gemma-?3"), {"google/Gemma-3-27b": YES, "qwen3": NO, 3: UNK}),
    (IT.is_true(), {True: YES, False: NO}),
    (IT.is_set(), {"": YES, 0: YES}),
    (IT.is_not_empty(), {("a",): YES, (): NO}),
]
BETWEEN = [(A.above(B), 4, 2), (A.below(B), 2, 4), (A.differs_from(B), 1, 2), (A.indivisible_by(B), 6, 4)]


@pytest.mark.parametrize(("condition", "answers"), COMPARED, ids=lambda value: getattr(value, "operator", ""))
def test_a_condition_is_unknown_only_if_its_fact_is(condition, answers):
    unknown = condition.trace(Facts())

    assert {got: condition.trace(Facts(it=got)).answer for got in answers} == answers
    assert [condition.trace(Facts(it=got)).decisive.got for got in answers] == list(answers)
    assert (unknown.answer, str(unknown.decisive).endswith("got unknown")) == (UNK, True)
    assert condition.trace(Facts(it=None)).answer is NO
    assert {condition.operator for condition, _ in COMPARED} == set(OPERATORS)


@pytest.mark.parametrize("condition", [condition for condition, _ in COMPARED], ids=lambda one: one.operator)
def test_what_a_negation_wants_is_said_in_its_own_words(condition):
    plain, negated = (match.trace(Facts(it=None)).decisive.wanted for match in (condition, ~condition))

    assert negated not in (plain, f"not {plain}")
    assert str(~condition) == f"it ({negated})"
    assert (~~condition).trace(Facts(it=None)).decisive.wanted == plain


@pytest.mark.parametrize(("condition", "a", "b"), BETWEEN, ids=lambda value: getattr(value, "operator", ""))
def test_a_comparison_of_facts_is_unknown_only_if_one_of_them_is(condition, a, b):
    answers = {(a, b): YES, (b, b): NO, (3, UNKNOWN): UNK, (UNKNOWN, 3): UNK, (UNKNOWN, UNKNOWN): UNK}
    answers |= dict.fromkeys([(3, None), (None, 3), (None, UNKNOWN), (UNKNOWN, None)], NO)

    assert {pair: condition.trace(Facts(zip("ab", pair, strict=True))).answer for pair in answers} == answers


@pytest.mark.parametrize(
    ("condition", "facts", "words"),
    [
        (A.indivisible_by(B), {"a": 6, "b": 4}, "a: wanted not a multiple of b = 4, got 6"),
        (A.below(B), {"b": 2}, "a: wanted < b = 2, got unknown"),
        (A.below(B), {"a": 1, "b": None}, "a: wanted < b = nothing, got 1"),
        (A.above(1), {"a": None}, "a: wanted > 1, got nothing"),
        (~A.below(B), {"a": 1, "b": 2}, "a: wanted >= b = 2, got 1"),
        (~(A.above(1) | ~B.is_true()), {"a": 2, "b": True}, "a: wanted <= 1, got 2"),
        (~(A.above(1) & ~~B.is_true()), {"a": 2, "b": True}, "a: wanted <= 1, got 2"),
        (~package("acme", fixed="2"), {"packages.acme": "1.5"}, "packages.acme: wanted not < 2, got 1.5"),
    ],
)
def test_a_leaf_compares_what_it_wanted_with_what_it_got(condition, facts, words):
    assert str(condition.trace(Facts(facts)).decisive) == words


def test_a_trace_shows_every_leaf_and_the_one_that_decided():
    trace = (LEAVES[YES] & LEAVES[UNK] & LEAVES[NO]).trace(FACTS)

    assert [leaf.fact for leaf in trace.leaves] == ["yes", "missing", "no"]
    assert (trace.decisive.fact, (LEAVES[YES] & LEAVES[UNK]).trace(FACTS).decisive.fact) == ("no", "missing")
    assert (~LEAVES[NO]).trace(FACTS).leaves == (Leaf("no", "false", False, YES),)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *(
            (
                lambda word=word: Condition("a", word, B),
                r"on a: .*(takes no fact \(b\); above, below, differs_from|is no pattern)",
            )
            for word in ("one_of", "matches", "is_set")
        ),
        (lambda: Condition("a", "abov", 1), "unknown operator 'abov'; did you mean 'above'"),
        (lambda: model_name("("), "is no pattern"),
        (lambda: setting("refit.scop"), r"did you mean 'refit\.scope'"),
        (lambda: typed("refit.scop"), r"did you mean 'refit\.scope'"),
        (lambda: typed("engine.hf_overrides.key"), "unknown slot"),
        (lambda: environment("HF_TOKEN"), "looks like that of a secret"),
    ],
)
def test_a_condition_that_cannot_be_is_an_error_at_once(make, words):
    with pytest.raises(DeclarationError, match=words):
        make()


@pytest.mark.parametrize(
    ("condition", "facts"),
    [
        (model_type("qwen3"), {"model.model_type": "qwen3"}),
        (model_name("QWEN"), {"model.name": "Qwen/Qwen3-0.6B"}),
        (platform("cpu", "xpu"), {"platform": "xpu"}),
        (purpose("rollout"), {"purpose": "rollout"}),
        (environment("ANY_NAME").one_of("0"), {"env.ANY_NAME": "0"}),
        (setting("engine.seed").one_of(0), {"engine.seed": 0}),
        (setting("engine.hf_overrides.rope_theta").is_set(), {"engine.hf_overrides.rope_theta": 5e6}),
        (typed("engine.seed"), {"typed.engine.seed": True}),
        (package("vllm", introduced="0.9", fixed="0.10"), {"packages.vllm": "0.9.2"}),
    ],
)
def test_each_named_matcher_asks_for_its_fact(condition, facts):
    assert condition.trace(Facts(facts)).answer is YES
    assert list(condition.facts()) == list(facts)


@pytest.mark.parametrize(
    ("match", "types"),
    [
        (model_type("a", "b") & model_type("b", "c"), {"b"}),
        (model_type("a") | model_type("b"), {"a", "b"}),
        (model_type("a") | purpose("eval"), None),
        (~model_type("a"), None),
    ],
)
def test_a_match_knows_the_model_types_that_it_needs(match, types):
    assert match.model_types() == types


def test_all_that_can_be_matched_on_is_on_the_page_for_authors():
    page = (Path(__file__).parents[2] / "docs" / "writing-a-quirk.md").read_text(encoding="utf-8")
    matchers = [name for name, value in inspect.getmembers(match, inspect.isfunction) if value.__module__ == match.__name__]

    assert {name for name in OPERATORS if f"`.{name}(" not in page} == set()
    assert {name for name in vars(Fact) if callable(getattr(Fact, name)) and not name.startswith("_")} == set(OPERATORS)
    assert {name for name in matchers if not name.startswith("_") and f"`{name}(" not in page} == set()
    assert {name for name in Run.__annotations__ if not re.search(rf"`{name}\b", page)} == set()
