"""A declaration is data: JSON holds it, it survives pickling, and its digest sees every change but its place."""

from __future__ import annotations

import dataclasses
import importlib
import json
import operator
import pickle
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core import (
    Advise,
    Affected,
    Default,
    Fact,
    Kind,
    Match,
    ModelFlag,
    PairedRun,
    Patch,
    Quirk,
    Refuse,
    Require,
    Severity,
    StaticProbe,
    SymbolProbe,
    fix,
    package,
    purpose,
    report,
    yes,
)
from quirks_core.base.errors import DeclarationError
from quirks_core.declaration.adjustments import same
from quirks_core.declaration.encoding import digest, encode
from quirks_core.declaration.examples import Example
from quirks_core.declaration.quirk import Location
from quirks_core.declaration.trace import Answer
from quirks_core.plugins.registry import Registry

WORDS = st.text("abc ü🙂'\"\\", min_size=1, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | WORDS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(WORDS, below, max_size=3),
    max_leaves=5,
)
FACTS = st.sampled_from(["model.name", "platform", "engine.seed", "weather"]).map(Fact)
MATCHES = st.recursive(
    st.one_of(
        st.builds(lambda fact, values: fact.one_of(*values), FACTS, st.lists(WORDS, min_size=1, max_size=3)),
        st.builds(lambda fact, bound: fact.above(bound), FACTS, st.integers(0, 3) | FACTS),
        FACTS.map(Fact.is_set),
        st.just(package("vllm", fixed="0.9")),
    ),
    lambda parts: st.builds(operator.and_, parts, parts) | st.builds(operator.or_, parts, parts) | parts.map(operator.invert),
    max_leaves=5,
)
WHEN = st.none() | MATCHES
TARGETS = st.sampled_from(["vllm.module:Class.attribute", "vllm.module:function"])
ASKED = st.one_of(
    st.tuples(st.just("engine.any_argument"), st.just("value"), JSON.filter(lambda value: value is not None)),
    st.tuples(st.just("engine.seed"), st.sampled_from(["at_most", "at_least", "value"]), st.integers()),
    st.tuples(st.just("engine.load_format"), st.just("one_of"), st.lists(WORDS, min_size=1, max_size=2)),
    st.tuples(st.just("sampling.stop_token_ids"), st.just("includes"), st.lists(st.integers(), max_size=2)),
)
ADJUSTMENTS = st.one_of(
    st.builds(lambda one, reason, when: Default(one[0], reason=reason, when=when, **{one[1]: one[2]}), ASKED, WORDS, WHEN),
    st.builds(lambda one, other: Require(one[0], instead_of=other, **{one[1]: one[2]}), ASKED, st.lists(WORDS, max_size=2)),
    st.builds(Refuse, WORDS, WORDS, WHEN),
    st.builds(Advise, WORDS, WHEN),
    st.builds(lambda target: Patch(target, wrapper="mine:wrap", expects=("0" * 12, "1" * 12)), TARGETS),
    st.builds(lambda target, when: Patch(target, adds="mine:new", when=when), TARGETS, WHEN),
)
EVIDENCE = st.one_of(
    st.builds(StaticProbe, st.just("vllm.envs"), st.just("a+"), st.booleans()),
    st.builds(SymbolProbe, TARGETS, st.booleans()),
    st.just(PairedRun("mine.scenarios:run")),
)
EXAMPLES = st.builds(
    Example,
    answer=st.sampled_from(Answer),
    config=st.dictionaries(WORDS, JSON, max_size=3),
    settings=st.sampled_from([{}, {"engine.seed": 1}]),
    packages=st.dictionaries(st.sampled_from(["vllm", "torch"]), st.just("0.9.1")),
)
RANGES = st.sampled_from([(), (Affected("vllm", fixed="0.9"),), (Affected("vllm"), Affected("xformers", introduced="1.0"))])
QUIRKS = st.builds(
    Quirk,
    id=st.sampled_from(["one", "acme/two"]),
    title=WORDS,
    flag=st.sampled_from([ModelFlag.TOKENIZER, "acme:own"]),
    kind=st.sampled_from(Kind),
    match=MATCHES,
    adjustments=st.lists(ADJUSTMENTS, min_size=1, max_size=3),
    affected=RANGES,
    severity=st.sampled_from(Severity),
    references=st.sampled_from([report("https://example.org/1"), fix("https://example.org/2")]),
    evidence=st.lists(EVIDENCE, max_size=2),
    examples=st.lists(EXAMPLES, max_size=2),
    supersedes=st.sampled_from([(), ("three",), ("three", "four")]),
    cost=WORDS,
)


@settings(max_examples=50)
@given(QUIRKS, QUIRKS)
def test_every_declaration_is_data_with_a_digest_of_its_own(one, two):
    copy = pickle.loads(pickle.dumps(one))  # noqa: S301 - our own bytes

    assert json.loads(json.dumps(encode(one), allow_nan=False)) == encode(one)
    assert (copy, encode(copy), digest(copy)) == (one, encode(one), digest(one))
    parts = [{name: part for name, part in encode(quirk).items() if name not in ("examples", "kind")} for quirk in (one, two)]
    assert same(*parts) is (digest(one) == digest(two))  # examples and kind change no run


def test_every_built_in_quirk_is_data_with_a_digest_of_its_own():
    quirks = [item.quirk for item in Registry.load().loaded]

    assert pickle.loads(pickle.dumps(quirks)) == quirks  # noqa: S301 - our own bytes
    assert json.loads(json.dumps([encode(quirk) for quirk in quirks])) == [encode(quirk) for quirk in quirks]
    assert len({digest(quirk) for quirk in quirks}) == len(quirks)


CHANGES = {
    "id": "other",
    "title": "Another title",
    "flag": ModelFlag.TOKENIZER,
    "match": purpose("eval"),
    "adjustments": Default("engine.enforce_eager", False),
    "affected": Affected("vllm", fixed="0.9"),
    "severity": Severity.CRASH,
    "references": report("https://example.org/other"),
    "evidence": SymbolProbe("vllm.envs", present_means_affected=True),
    "examples": yes(),
    "kind": Kind.RULE,
    "supersedes": "another",
    "cost": "a lot",
}


def test_the_digest_sees_every_field_that_can_change_a_run(make_quirk):
    seen = {name: value for name, value in CHANGES.items() if name not in ("examples", "kind")}
    digests = {digest(make_quirk(**{name: value})) for name, value in seen.items()}
    digests |= {digest(make_quirk(**{name: CHANGES[name]})) for name in ("examples", "kind")}
    digests.add(digest(make_quirk(severity=Severity.CRASH, crash="it ends")))

    assert {field.name for field in dataclasses.fields(Quirk)} - set(CHANGES) == {"crash", "location"}
    assert digest(make_quirk()) in digests
    assert len(digests) == len(seen) + 2
    assert digest(make_quirk(location=Location("a.py", 1))) == digest(make_quirk(location=Location("b.py", 2)))
    assert "location" not in encode(make_quirk())


CODE = "def wrap(original):\n    return original\n\n\ndef value(context):\n    return 1\n"


@pytest.mark.parametrize("changed", ["return original", "return 1"])
def test_the_digest_sees_the_code_that_a_declaration_names(make_quirk, write_modules, changed):
    def made():
        sys.modules.pop("fake_code", None)
        module = importlib.import_module("fake_code")
        patch = Patch("vllm.envs:x", wrapper="fake_code:wrap", expects="0" * 12)
        quirk = make_quirk(adjustments=(patch, Default("engine.seed", module.value)))
        assert encode(quirk)["adjustments"][1]["operand"]["$function"] == "fake_code:value"
        return digest(quirk)

    write_modules({"fake_code.py": CODE})
    before = made()
    write_modules({"fake_code.py": CODE.replace(changed, f"{changed} + 0  # changed")})

    assert made() != before


def test_what_is_no_data_cannot_be_encoded(make_quirk):
    class Own(Match):
        def trace(self, facts):
            return purpose("eval").trace(facts)

    with pytest.raises(DeclarationError, match="in a declaration is not data"):
        encode(make_quirk(match=Own()))
