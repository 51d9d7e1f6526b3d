"""What differs between two plans: everything that matters, nothing else, and from either side the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core import Advise, Affected, Default, ModelFacts, Plan, Refuse, Require, RunContext
from quirks_core.diff import Change, OneSided, PlanDiff, diff
from quirks_core.plan import Contributor, PlannedPatch, Refusal
from quirks_core.resolve import resolve

EAGER = "engine.enforce_eager"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0]) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["", "a", "b", "a.b"]), inner, max_size=3),
    max_leaves=4,
)
CONFIGS = st.dictionaries(st.sampled_from(["a", "b", "a.b"]), JSON, max_size=3)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "purpose": st.sampled_from(["rollout", "eval", "serve"]),
        "recipe": st.sampled_from([None, "grpo"]),
        "model": CONFIGS.map(lambda config: ModelFacts(name="tiny", path="/models/tiny", config=config)),
        "settings": st.dictionaries(st.sampled_from([EAGER, "engine.seed"]), st.sampled_from([0, 1, True, 1.0])),
        "typed": st.frozensets(st.sampled_from([EAGER, "engine.seed"])),
        "packages": st.dictionaries(st.sampled_from(["vllm", "torch"]), st.sampled_from(["0.9", "0.9.0", "1.0"])),
        "assumed": st.frozensets(st.sampled_from(["vllm", "torch"])),
        "platform": st.sampled_from([None, "cpu", "cuda"]),
        "environment": st.dictionaries(st.sampled_from(["VLLM_A", "NCCL_B"]), st.sampled_from(["0", "1"])),
        "extra": CONFIGS,
    },
)


@pytest.fixture(scope="session")
def make_plan(make_context, loaded):
    """Resolves quirks for a context, with nothing switched."""
    return lambda *quirks, context=None: resolve(context or make_context(), [loaded(quirk) for quirk in quirks])


def swapped(found: PlanDiff) -> PlanDiff:
    """The same difference, with the sides exchanged."""

    def sides(item: Any) -> Any:
        update = {"a": item.b, "b": item.a}
        if isinstance(item, Change):
            update["missing"] = {"a": "b", "b": "a"}.get(item.missing)
        return item.model_copy(update=update)

    lists = {name: tuple(map(sides, getattr(found, name))) for name in ("facts", "slots", "quirks", "patches")}
    return PlanDiff(
        digests=found.digests[::-1], **lists, refusals=sides(found.refusals), warnings=sides(found.warnings)
    )  # fmt: skip


def facts_of(found: PlanDiff) -> dict[str, tuple[Any, Any]]:
    """Both values by name."""
    return {fact.name: (fact.a, fact.b) for fact in found.facts}


@settings(max_examples=300, deadline=None)
@given(first=FACTS, second=FACTS)
def test_plans_whose_digests_differ_differ_in_something_that_is_shown(first, second, make_context, make_plan, make_quirk):
    quirk = make_quirk(adjustments=(Default(EAGER, True),))
    a, b = (make_plan(quirk, context=make_context(**facts)) for facts in (first, second))

    found = diff(a, b)

    rows = [found.facts, found.slots, found.quirks, found.patches, found.refusals.a, found.refusals.b]
    assert found.same or a.digest != b.digest or found.warnings != OneSided()
    assert any(rows) is (a.digest != b.digest)
    assert swapped(found) == diff(b, a)


@settings(max_examples=100, deadline=None)
@given(facts=FACTS)
def test_a_plan_does_not_differ_from_what_its_json_says(facts, make_context, make_plan, make_quirk):
    plan = make_plan(
        make_quirk(id="asks"),
        make_quirk(id="warns", adjustments=(Advise("look out"),)),
        make_quirk(id="refuses", adjustments=(Refuse("it hangs", "use fewer ranks"),)),
        context=make_context(**facts),
    )

    found = diff(plan, Plan.model_validate_json(plan.to_json()))

    assert found == PlanDiff(digests=(plan.digest, plan.digest))
    assert found.same


def test_facts_are_named_by_their_path_and_show_both_values(make_context, make_plan):
    config = {"model_type": "gemma3", "text_config": {"layers": 2}}
    other = make_context(
        purpose="eval",
        model=ModelFacts(name="tiny-gemma3", path="/elsewhere", config=config),
        packages={"torch": "2.13.0", "vllm": "0.33.0"},
        platform="cuda",
        environment={"VLLM_USE_V1": "1"},
    )

    found = diff(make_plan(), make_plan(context=other))

    assert facts_of(found) == {
        "environment.VLLM_USE_V1": (None, "1"),
        "model.config.model_type": ("qwen3", "gemma3"),
        "model.config.text_config.layers": (None, 2),
        "model.name": ("tiny-qwen3", "tiny-gemma3"),
        "packages.vllm": ("0.32.0", "0.33.0"),
        "platform": ("cpu", "cuda"),
        "purpose": ("rollout", "eval"),
    }


def test_null_is_a_value_and_a_missing_key_is_none(make_context, make_plan):
    null, none = (
        make_plan(context=make_context(model=ModelFacts(name="m", path="m", config=config))) for config in ({"a": None}, {})
    )

    with_null = diff(null, none)

    assert with_null.facts == (
        Change(name="model.config", a=None, b={}, missing="a"),
        Change(name="model.config.a", missing="b"),
    )
    assert not with_null.same


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (1, 1.0)])
def test_values_are_compared_as_json(make_context, make_plan, one, other):
    a, b = (
        make_plan(context=make_context(model=ModelFacts(name="m", path="m", config={"key": value}))) for value in (one, other)
    )

    assert [fact.name for fact in diff(a, b).facts] == ["model.config.key"]


def test_where_the_model_lies_and_where_a_quirk_is_declared_is_no_difference(make_context, make_plan, make_quirk):
    folder, elsewhere = (
        make_plan(
            make_quirk(id="one", adjustments=Require(EAGER, True)),
            make_quirk(id="two", adjustments=Require(EAGER, False)),
            context=make_context(model=ModelFacts(name="m", path=path, config={})),
        )
        for path in ("/here/m", "/there/m")
    )
    body = elsewhere.to_json()
    for location in {quirk.location for refusal in elsewhere.refusals for quirk in refusal.quirks}:
        body = body.replace(location, "another_file.py:1")

    found = diff(folder, Plan.model_validate_json(body))

    assert "another_file.py" in body
    assert found.same


def test_a_slot_shows_both_values_and_whose_they_are(make_context, make_plan, make_quirk):
    typed = make_context(settings={EAGER: False}, typed=frozenset({EAGER}))

    found = diff(make_plan(make_quirk()), make_plan(make_quirk(), context=typed))

    eager = {slot.slot: slot for slot in found.slots}[EAGER]
    assert (eager.a.value, eager.a.who, eager.a.before) == (True, ("example",), None)
    assert (eager.b.value, eager.b.who, eager.b.before) == (False, ("the user",), False)
    assert eager.b.ledger == ("default True of example: kept user",)


def test_a_setting_that_no_quirk_touches_is_a_slot_that_differs(make_context, make_plan):
    a, b = (make_plan(context=make_context(settings=settings)) for settings in ({"engine.seed": 1}, {}))

    (slot,) = diff(a, b).slots

    assert (slot.a.value, slot.a.who) == (1, ("the configuration's default",))
    assert (slot.b.value, slot.b.who) == (None, ())


def test_a_quirk_whose_state_changes_shows_both_reasons(make_context, make_plan, make_quirk):
    quirk = make_quirk(affected=Affected("vllm", fixed="0.33.0"))

    found = diff(make_plan(quirk), make_plan(quirk, context=make_context(packages={"vllm": "0.33.0"})))

    (change,) = found.quirks
    assert (change.id, change.a.state, change.b.state) == ("example", "active", "dormant")
    assert "got 0.33.0" in change.b.because
    assert change.a.because != change.b.because


def test_another_reason_for_the_same_state_is_no_difference_of_the_quirk(make_context, make_plan, make_quirk):
    quirk = make_quirk(affected=Affected("vllm", fixed="0.9.0"))

    found = diff(make_plan(quirk), make_plan(quirk, context=make_context(packages={"vllm": "0.33.0"})))

    assert found.quirks == ()


def test_a_quirk_that_one_installation_lacks_or_has_in_another_version_differs(make_context, make_quirk, loaded):
    old, new = (
        resolve(make_context(), [loaded(make_quirk(), version=version), *more])
        for version, more in (("1.2", []), ("1.3", [loaded(make_quirk(id="newer", adjustments=(Advise("hm"),)))]))
    )

    example, newer = diff(old, new).quirks

    assert (example.a.version, example.b.version) == ("1.2", "1.3")
    assert (newer.id, newer.a, newer.b.state) == ("newer", None, "active")


def test_refusals_and_warnings_of_one_side_only_are_told(make_plan, make_quirk):
    plain = make_plan(make_quirk())
    troubled = make_plan(
        make_quirk(), make_quirk(id="r", adjustments=(Refuse("it hangs", "use one"), Advise("look out"), Advise("look out")))
    )

    found = diff(plain, troubled)

    assert [refusal.reason for refusal in found.refusals.b] == ["it hangs"]
    assert found.warnings == OneSided[str](b=("r: look out", "r: look out"))
    assert found.refusals.a == ()


def test_a_refusal_for_another_reason_differs_on_both_sides(make_plan, make_quirk):
    a, b = (make_plan(make_quirk(adjustments=(Refuse(reason, "stop"),))) for reason in ("it hangs", "it crashes"))

    refusals = diff(a, b).refusals

    assert ([item.reason for item in refusals.a], [item.reason for item in refusals.b]) == (["it hangs"], ["it crashes"])


def test_a_patch_differs_by_its_fingerprint_and_its_quirk_s_version(make_plan):
    def patched(plan: Plan, fingerprint: str, version: str = "1") -> Plan:
        quirk = Contributor(id="fixer", distribution="acme", version=version, location="a.py:1", reason="it crashes")
        fields = {"target": "vllm.x:Y.z", "flag": "runtime", "fingerprint": fingerprint, "entry_point": "fixer", "quirk": quirk}
        known = {name: value for name, value in fields.items() if name in PlannedPatch.model_fields}
        return plan.model_copy(update={"patches": (PlannedPatch.model_construct(**known),)})

    plan = make_plan()

    (other,) = diff(patched(plan, "aa"), patched(plan, "bb")).patches
    (newer,) = diff(patched(plan, "aa"), patched(plan, "aa", "2")).patches
    (alone,) = diff(plan, patched(plan, "aa")).patches

    assert (other.name, other.a["fingerprint"], other.b["fingerprint"]) == ("vllm.x:Y.z.fixer", "aa", "bb")
    assert (newer.a["version"], newer.b["version"]) == ("1", "2")
    assert (alone.missing, alone.a) == ("a", None)


def test_a_digest_that_alone_differs_is_a_difference(make_plan):
    plan = make_plan()

    found = diff(plan, plan.model_copy(update={"digest": "0" * 64}))

    assert not found.same
    assert found == PlanDiff(digests=(plan.digest, "0" * 64))


def test_a_difference_survives_json(make_context: Any, make_plan: Any, make_quirk: Any) -> None:
    context: RunContext = make_context(purpose="eval", settings={})
    refusing = make_quirk(id="r", adjustments=(Refuse("it hangs", "use one"), Advise("look out")))

    found = diff(make_plan(refusing), make_plan(context=context))

    assert isinstance(found.refusals.a[0], Refusal)
    assert PlanDiff.model_validate_json(found.model_dump_json()) == found
