"""A declaration is data: it comes back from JSON equal, survives pickling, and its digest sees every change but its place."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core import (
    ABSENT,
    Advise,
    Affected,
    Answer,
    DeclarationError,
    Default,
    Example,
    Fact,
    FingerprintProbe,
    Match,
    ModelFlag,
    PairedRun,
    Patch,
    Quirk,
    Refuse,
    Registry,
    Require,
    RunContext,
    Severity,
    StaticProbe,
    SymbolProbe,
    fix,
    package,
    purpose,
    report,
)
from quirks_core.declaration import decode, digest, encode
from quirks_core.quirk import Location

laws = settings(max_examples=25, deadline=None)
BUILT_IN = Registry.load().loaded
WORDS = st.text("abc ü🙂'\"\\", min_size=1, max_size=6)


def a_match() -> st.SearchStrategy[Match]:
    """Conditions and what can be made of them."""
    fact = st.sampled_from(["model.name", "platform", "engine.seed", "weather"]).map(Fact)
    leaves = st.one_of(
        st.builds(lambda f, values: f.one_of(*values), fact, st.lists(WORDS, min_size=1, max_size=3)),
        st.builds(lambda f, values: f.any_in(*values), fact, st.lists(st.integers(), min_size=1, max_size=3)),
        st.builds(lambda f, bound: f.above(bound), fact, st.integers()),
        st.builds(lambda f, bound: f.below(bound), fact, st.floats(allow_nan=False)),
        st.builds(lambda f: f.matches("a+"), fact),
        fact.map(Fact.is_true),
        fact.map(Fact.is_set),
        fact.map(Fact.is_not_empty),
        st.just(package("vllm", fixed="0.9")),
    )
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.builds(lambda a, b: a & b, parts, parts), st.builds(lambda a, b: a | b, parts, parts), parts.map(lambda a: ~a)
        ),
        max_leaves=5,
    )


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), WORDS),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(WORDS, below, max_size=3)),
    max_leaves=5,
)
VALUES = st.one_of(
    st.tuples(st.just("engine.seed"), st.integers()),
    st.tuples(st.just("engine.load_format"), WORDS),
    st.tuples(st.just("engine.gpu_memory_utilization"), st.floats(0, 1)),
    st.tuples(st.just("sampling.stop_token_ids"), st.lists(st.integers(), max_size=3)),
    st.tuples(st.just("engine.hf_overrides"), st.dictionaries(WORDS, JSON, max_size=3)),
)
WHEN = st.none() | a_match()
TARGETS = st.sampled_from(["vllm.module:Class.attribute", "vllm.module:function"])
ADJUSTMENTS = st.one_of(
    st.builds(lambda wish, reason, when: Default(*wish, reason=reason, when=when), VALUES, WORDS, WHEN),
    st.builds(lambda wish, remedy, when: Require(*wish, remedy=remedy, when=when), VALUES, WORDS, WHEN),
    st.builds(
        lambda values, when: Require("engine.load_format", "auto", instead_of=tuple(values), when=when), st.lists(WORDS), WHEN
    ),
    st.builds(Refuse, WORDS, WORDS, WHEN),
    st.builds(Advise, WORDS, WHEN),
    st.builds(lambda target, when: Patch(target, wrapper="mine:wrap", expects=("0" * 64, "1" * 64), when=when), TARGETS, WHEN),
    st.builds(lambda target, when: Patch(target, replacement="mine:new", expects=ABSENT, when=when), TARGETS, WHEN),
)
EVIDENCE = st.one_of(
    st.builds(StaticProbe, st.just("vllm.envs"), st.just("a+"), st.booleans()),
    st.builds(SymbolProbe, TARGETS, st.booleans()),
    st.builds(FingerprintProbe, TARGETS, st.just(("0" * 64,)), st.sampled_from([(), ("1" * 64,)])),
    st.builds(PairedRun, st.just("mine.scenarios:run"), WORDS),
)
EXAMPLES = st.builds(
    Example,
    answer=st.sampled_from(Answer),
    config=st.dictionaries(WORDS, JSON, max_size=3),
    settings=st.lists(VALUES, max_size=2).map(dict),
    packages=st.dictionaries(st.sampled_from(["vllm", "torch"]), st.just("0.9.1")),
    platform=st.sampled_from([None, "cpu", "cuda"]),
    purpose=st.sampled_from(["rollout", "eval", "serve"]),
    extra=st.dictionaries(WORDS, JSON, max_size=2),
)
QUIRKS = st.builds(
    Quirk,
    id=st.sampled_from(["one", "acme/two"]),
    title=WORDS,
    flag=st.sampled_from([ModelFlag.TOKENIZER, "acme:own"]),
    match=a_match(),
    adjustments=st.lists(ADJUSTMENTS, min_size=1, max_size=3),
    affected=st.lists(
        st.sampled_from([Affected("vllm", fixed="0.9"), Affected("xformers", introduced="1.0")]), max_size=2, unique=True
    ),
    severity=st.sampled_from(Severity),
    references=st.sampled_from([report("https://example.org/1"), fix("https://example.org/2")]),
    evidence=st.lists(EVIDENCE, max_size=2),
    examples=st.lists(EXAMPLES, max_size=2),
    supersedes=st.sampled_from([(), ("three",), ("three", "four")]),
    cost=WORDS,
    since=WORDS,
)


def through_json(quirk: Quirk) -> Quirk:
    """A quirk that was written and read."""
    back = decode(json.loads(json.dumps(encode(quirk))))
    assert isinstance(back, Quirk)
    return back


@pytest.mark.parametrize("item", BUILT_IN, ids=lambda item: item.quirk.id)
def test_every_built_in_quirk_comes_back_from_json(item: Any) -> None:
    assert through_json(item.quirk) == item.quirk
    assert digest(through_json(item.quirk)) == digest(item.quirk)


@pytest.mark.parametrize("item", BUILT_IN, ids=lambda item: item.quirk.id)
def test_every_built_in_quirk_survives_pickling(item: Any) -> None:
    assert pickle.loads(pickle.dumps(item.quirk)) == item.quirk  # noqa: S301 - our own bytes


@laws
@given(QUIRKS)
def test_every_declaration_comes_back_from_json(quirk: Quirk) -> None:
    assert through_json(quirk) == quirk


@laws
@given(QUIRKS)
def test_every_declaration_survives_pickling(quirk: Quirk) -> None:
    assert pickle.loads(pickle.dumps(quirk)) == quirk  # noqa: S301 - our own bytes


@laws
@given(QUIRKS)
def test_what_comes_back_is_encoded_as_before(quirk: Quirk) -> None:
    assert encode(through_json(quirk)) == encode(quirk)


@laws
@given(QUIRKS, QUIRKS)
def test_declarations_that_differ_have_different_digests(one: Quirk, two: Quirk) -> None:
    assert one == two or digest(one) != digest(two)


CHANGES: dict[str, Any] = {
    "id": "other",
    "title": "Another title",
    "flag": ModelFlag.TOKENIZER,
    "match": purpose("eval"),
    "adjustments": (Default("engine.enforce_eager", False),),
    "affected": (Affected("vllm", fixed="0.9"),),
    "severity": Severity.CRASH,
    "references": (report("https://example.org/other"),),
    "evidence": (SymbolProbe("vllm.envs", present_means_affected=True),),
    "examples": (Example(answer=Answer.YES),),
    "supersedes": ("another",),
    "cost": "a lot",
    "since": "9.9",
}


def test_these_are_all_fields_of_a_quirk() -> None:
    assert {field.name for field in dataclasses.fields(Quirk)} - set(CHANGES) <= {"location", "keep"}


@pytest.mark.parametrize("field", CHANGES)
def test_the_digest_sees_every_field(make_quirk: Callable[..., Quirk], field: str) -> None:
    assert digest(make_quirk(**{field: CHANGES[field]})) != digest(make_quirk())


def test_the_digest_does_not_see_where_the_declaration_stands(make_quirk: Callable[..., Quirk]) -> None:
    one, two = (make_quirk(location=Location("a.py", line)) for line in (1, 2))

    assert digest(one) == digest(two)
    assert "location" not in encode(one)


WRAPPER = "def wrap(original):\n    return original\n\n\ndef value(context):\n    return 1\n"


@pytest.mark.parametrize("changed", ["return original", "return 1"])
def test_the_digest_sees_the_code_that_a_declaration_names(
    make_quirk: Callable[..., Quirk], write_modules: Callable[[dict[str, str]], None], changed: str
) -> None:
    def made() -> str:
        sys.modules.pop("fake_code", None)
        module = importlib.import_module("fake_code")
        patch = Patch("vllm.envs:x", wrapper="fake_code:wrap", expects="0" * 64)
        return digest(make_quirk(adjustments=(patch, Default("engine.seed", module.value))))

    write_modules({"fake_code.py": WRAPPER})
    before = made()
    write_modules({"fake_code.py": WRAPPER.replace(changed, f"{changed} + 0  # changed")})

    assert made() != before


def seed_of(context: RunContext) -> int:
    """A value that is computed."""
    return len(context.model.name)


def test_a_function_travels_by_its_name(
    make_quirk: Callable[..., Quirk], write_modules: Callable[[dict[str, str]], None]
) -> None:
    write_modules({"fake_code.py": WRAPPER})
    from fake_code import value

    quirk = make_quirk(adjustments=Default("engine.seed", value))

    assert encode(quirk)["adjustments"][0]["value"]["$function"] == "fake_code:value"
    assert through_json(quirk) == quirk


def test_a_lambda_cannot_come_back_and_the_error_names_it(make_quirk: Callable[..., Quirk]) -> None:
    quirk = make_quirk(adjustments=Default("engine.seed", lambda _: 1))

    with pytest.raises(DeclarationError, match=r"<lambda> cannot be found again"):
        through_json(quirk)


def test_a_module_that_is_not_installed_cannot_come_back_and_the_error_names_it(make_quirk: Callable[..., Quirk]) -> None:
    written = encode(make_quirk(adjustments=Default("engine.seed", seed_of)))
    written["adjustments"][0]["value"]["$function"] = "no_such_module:function"

    with pytest.raises(DeclarationError, match="no_such_module:function cannot be found again"):
        decode(written)


@pytest.mark.parametrize(
    "written",
    [
        {"$type": "subprocess:Popen", "args": ["true"]},
        {"$type": "os:system", "command": "true"},
        {"$type": "builtins:dict", "a": 1},
        {"$type": "pathlib:Path"},
        {"$type": "NoSuchRecord"},
        {"$type": "no_such_module:Record"},
        {"$type": "Quirk", "colour": "red"},
        {"$type": "Example", "answer": "maybe"},
        {"$type": "Refuse"},
        {"$function": "lambda"},
        {"$type": 3},
        {"$function": None},
    ],
    ids=str,
)
def test_what_comes_back_is_a_declaration_and_nothing_else(written: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        decode(written)


def test_what_is_no_data_cannot_be_encoded(make_quirk: Callable[..., Quirk]) -> None:
    class Own(Match):
        """A match with something in it that is no data."""

        def trace(self, facts: Any) -> Any:
            return purpose("eval").trace(facts)

    with pytest.raises(DeclarationError, match="in a declaration is not data"):
        encode(make_quirk(match=Own()))


def test_equal_conditions_are_equal_wherever_they_were_made() -> None:
    assert purpose("rollout") & Fact("a").above(1) == purpose("rollout") & Fact("a").above(1)
    assert len({purpose("rollout"), purpose("rollout"), purpose("eval")}) == 2
