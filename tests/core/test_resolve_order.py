"""Order cannot matter: whatever the quirks, any order of registration gives the same plan, and so does a second time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core import Advise, Default, Fact, Patch, Refuse, Require, model_type, purpose, setting
from quirks_core.declaration.adjustments import holds, is_among
from quirks_core.plan.records import State
from quirks_core.plan.resolve import resolve
from quirks_core.plan.switches import Switches, SwitchNames

STOPS, MAPPING, ARGUMENT = "sampling.stop_token_ids", "engine.hf_overrides", "engine.any_argument"
ASKED = [
    *((kind, slot, {"value": value}) for kind in (Default, Require) for slot, values in {
        "engine.load_format": ("auto", "dummy", "sharded"),
        "engine.max_num_seqs": (8, 16),
        "request.timeout_s": (600, 600.0),
        "env.NCCL_DEBUG": ("0", "1"),
        ARGUMENT: (1, True, {"a": 1}, [1, 2]),
        MAPPING: ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 2, "c": None}}, {"a.b": 1}, {"c": [1, 2]}),
        STOPS: ([1], []),
    }.items() for value in values),
    *((kind, "engine.max_num_seqs", bound) for kind in (Default, Require) for bound in ({"at_most": 8}, {"at_least": 12})),
    *((kind, "engine.load_format", {"one_of": ns}) for kind in (Default, Require) for ns in (["auto", "sharded"], ["dummy"])),
    *((kind, slot, {"includes": ns}) for kind in (Default, Require) for slot in (STOPS, ARGUMENT) for ns in ([1], [2, 1])),
]  # fmt: skip
#: What a user may have typed, or the configuration may bring.
PRESENT = {
    "engine.load_format": ("auto", "dummy", "other"),
    "engine.max_num_seqs": (4, 10, 32),
    MAPPING: ({"a": None}, {"a": {"b": 2}}, {"a": 7}, {"z": 1}, {}),
    STOPS: ([3], [1, 2], []),
    ARGUMENT: (1, True, "text", [2], {"a": 2}),
}
MATCHES = (purpose("rollout"), model_type("gemma3"), Fact("weather").is_true(), setting("engine.load_format").one_of("auto"))
ADJUSTMENTS = st.one_of(
    st.sampled_from(ASKED).map(lambda asked: asked[0](asked[1], **asked[2])),
    st.sampled_from(ASKED).map(lambda asked: asked[0](asked[1], **asked[2])),
    st.builds(
        lambda asked, when: asked[0](asked[1], when=when, **asked[2]), st.sampled_from(ASKED), st.sampled_from(MATCHES)
    ),
    st.just(Require("engine.load_format", "auto", instead_of="dummy")),
    st.just(Refuse("it hangs", "use fewer ranks")),
    st.sampled_from([None, *(setting(slot).is_set() for slot in PRESENT)]).map(lambda when: Advise("look out", when=when)),
    st.sampled_from("ab").map(lambda name: Patch(f"no_such_package.module:{name}", adds="mine:function")),
    st.sampled_from("cd").map(lambda name: Patch(f"no_such_package.module:{name}", wrapper="mine:f", expects="0" * 12)),
)  # fmt: skip
DECLARATIONS = st.fixed_dictionaries(
    {
        "match": st.sampled_from((MATCHES[0], MATCHES[0], *MATCHES)),
        "flag": st.sampled_from(["load_format", "logprobs", "mine:own"]),
        "adjustments": st.lists(ADJUSTMENTS, min_size=1, max_size=3),
    }
)
NAMES = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)
CONTEXTS = st.fixed_dictionaries({}, optional={slot: st.sampled_from(values) for slot, values in PRESENT.items()}).flatmap(
    lambda values: st.fixed_dictionaries(
        {"settings": st.just(values), "typed": st.frozensets(st.sampled_from(sorted(values) or ["engine.seed"]))}
    )
)
SWITCHES = st.builds(
    lambda off, on: Switches.gather(call=SwitchNames(off, on), environ={}),
    st.lists(st.sampled_from(["a", "b", "logprobs", "third-party"]), max_size=2),
    st.lists(st.sampled_from(["aa", "c", "load_format", "distribution:dist-b"]), max_size=2),
)


@settings(max_examples=100)
@given(data=st.data(), names=NAMES, facts=CONTEXTS, switches=SWITCHES)
def test_the_plan_does_not_depend_on_the_order_of_registration(data, names, facts, switches, make_context, make_quirk, loaded):
    supersedes = st.lists(st.sampled_from(names), max_size=1)  # in any direction, circles too: the registry sorts those out
    declared = {name: {"supersedes": data.draw(supersedes), **data.draw(DECLARATIONS)} for name in names}
    quirks = [loaded(make_quirk(id=name, **parts), f"dist-{name}") for name, parts in declared.items()]
    context = make_context(**facts)

    first, again = resolve(context, quirks, switches), resolve(context, quirks, switches)
    shuffled = resolve(context, data.draw(st.permutations(quirks)), switches)

    assert first.to_json() == again.to_json() == shuffled.to_json()
    assert first.digest == again.digest == shuffled.digest


@settings(max_examples=150)
@given(declarations=st.lists(DECLARATIONS, min_size=1, max_size=5), facts=CONTEXTS)
def test_requirements_hold_and_all_else_that_was_typed_stays(declarations, facts, make_context, make_quirk, make_plan):
    quirks = {f"q{n}": make_quirk(id=f"q{n}", **declaration) for n, declaration in enumerate(declarations)}

    plan = make_plan(*quirks.values(), context=make_context(**facts))

    active = [quirks[verdict.id] for verdict in plan.verdicts if verdict.state is State.ACTIVE]
    requires = [item for quirk in active for item in quirk.adjustments if isinstance(item, Require)]
    required = [item for item in requires if item.when in (None, MATCHES[0])]
    for item in required if not any(refusal.kind in ("conflict", "require") for refusal in plan.refusals) else ():
        value = plan.value(item.slot)
        tolerated = item.instead_of and item.slot in facts["typed"] and not is_among(value, item.instead_of)
        assert tolerated or has_keys(value, item.operand) or holds(item.relation, item.operand, value)
    # By the last condition an item may hold, and by the two between never: nothing says what they are about.
    untouched = set(facts["typed"]) - {item.slot for item in requires if item.when in (None, MATCHES[0], MATCHES[3])}
    assert not {slot for slot in untouched - {MAPPING, ARGUMENT} if slot in plan.changes}


def has_keys(value, wanted):
    """Of a mapping, whether it has the keys of another with their values."""
    if not isinstance(wanted, dict):
        return holds("=", wanted, value)
    return isinstance(value, dict) and all(key in value and has_keys(value[key], item) for key, item in wanted.items())
