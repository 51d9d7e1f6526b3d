"""Order cannot matter: whatever the quirks, any order of registration gives the same plan, and so does a second time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core import (
    Advise,
    Default,
    Fact,
    Loaded,
    Patch,
    Quirk,
    Refuse,
    Require,
    RunContext,
    Switches,
    Wishes,
    model_type,
    purpose,
)
from quirks_core.match import Match
from quirks_core.resolve import resolve

VALUES: dict[str, tuple[Any, ...]] = {
    "engine.load_format": ("auto", "dummy", "sharded"),
    "engine.enforce_eager": (True, False),
    "request.timeout_s": (600, 600.0, 30.5),
    "env.VLLM_USE_V1": ("0", "1"),
    "engine.gpu_memory_utilization": (0.5, 0.8, 1),
    "engine.max_num_seqs": (8, 16),
    "sampling.stop_token_ids": ([1], [2, 1], []),
    "engine.hf_overrides": ({"a": 1}, {"a": 2}, {"a": {"b": 1}}, {"a": {"b": 2, "c": None}}, {"a.b": 1}, {"c": [1, 2]}),
}
#: What a user may have typed of each slot.
TYPED: dict[str, tuple[Any, ...]] = {
    **VALUES,
    "engine.hf_overrides": ({"a": None}, {"a": {"b": 2}}, {"a": 7}, {"z": 1}, {}),
    "sampling.stop_token_ids": ([3], [1, 2], []),
}
MATCHES: tuple[Match, ...] = (purpose("rollout"), model_type("gemma3"), Fact("weather").is_true())
WISHES = st.sampled_from([(slot, value) for slot, values in VALUES.items() for value in values])
ADJUSTMENTS = st.one_of(
    st.builds(lambda wish: Default(*wish), WISHES),
    st.builds(lambda wish, when: Default(*wish, when=when), WISHES, st.sampled_from(MATCHES)),
    st.builds(lambda wish: Require(*wish), WISHES),
    st.builds(lambda wish: Require(*wish, instead_of=("dummy",)), WISHES),
    st.just(Refuse("it hangs", "use fewer ranks")),
    st.just(Advise("look out")),
    st.sampled_from(["a", "b"]).map(
        lambda name: Patch(f"no_such_package.module:{name}", replacement="mine:function", expects="absent")
    ),
    st.sampled_from("cd").map(lambda name: Patch(f"no_such_package.module:{name}", wrapper="mine:function", expects="0" * 64)),
)
DECLARATIONS = st.fixed_dictionaries(
    {
        "match": st.sampled_from((MATCHES[0], MATCHES[0], *MATCHES)),
        "flag": st.sampled_from(["load_format", "logprobs", "mine:own"]),
        "adjustments": st.lists(ADJUSTMENTS, min_size=1, max_size=3),
    }
)
NAMES = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)
CONTEXTS = st.fixed_dictionaries({}, optional={slot: st.sampled_from(values) for slot, values in TYPED.items()}).flatmap(
    lambda values: st.fixed_dictionaries(
        {"settings": st.just(values), "typed": st.frozensets(st.sampled_from(sorted(values) or ["engine.seed"]))}
    )
)
SWITCHES = st.builds(
    lambda off, on: Switches.gather(api=Wishes(off, on), environ={}),
    st.lists(st.sampled_from(["a", "b", "logprobs", "third-party"]), max_size=2),
    st.lists(st.sampled_from(["aa", "c", "load_format", "distribution:dist-b"]), max_size=2),
)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), names=NAMES, facts=CONTEXTS, switches=SWITCHES)
def test_the_plan_does_not_depend_on_the_order_of_registration(
    data: st.DataObject,
    names: list[str],
    facts: dict[str, Any],
    switches: Switches,
    make_context: Callable[..., RunContext],
    make_quirk: Callable[..., Quirk],
    loaded: Callable[..., Loaded],
) -> None:
    context = make_context(**facts)
    supersedes = st.lists(st.sampled_from(names), max_size=1)  # in any direction, circles too: the registry sorts those out
    quirks = [
        loaded(make_quirk(id=name, supersedes=data.draw(supersedes), **data.draw(DECLARATIONS)), f"dist-{name}")
        for name in names
    ]
    first = resolve(context, quirks, switches)

    again = resolve(context, quirks, switches)
    shuffled = resolve(context, data.draw(st.permutations(quirks)), switches)

    assert first.to_json() == again.to_json() == shuffled.to_json()
    assert first.digest == again.digest == shuffled.digest


@settings(max_examples=60, deadline=None)
@given(declarations=st.lists(DECLARATIONS, min_size=1, max_size=5), facts=CONTEXTS)
def test_every_slot_has_at_most_one_winner_and_every_conflict_is_refused(
    declarations: list[dict[str, Any]],
    facts: dict[str, Any],
    make_context: Callable[..., RunContext],
    make_quirk: Callable[..., Quirk],
    loaded: Callable[..., Loaded],
) -> None:
    quirks = [loaded(make_quirk(id=f"q{number}", **declaration)) for number, declaration in enumerate(declarations)]

    plan = resolve(make_context(**facts), quirks)

    # A set has as many winners as it likes, and the key 'a.b' reads like the key 'b' below 'a'.
    scalars = [item for item in plan.adjustments if item.slot not in ("sampling.stop_token_ids", "engine.hf_overrides.a.b")]
    in_force = [item.slot for item in scalars if item.in_force]
    contested = {item.slot for item in plan.adjustments if item.status == "conflict"}
    assert len(in_force) == len(set(in_force))
    conflicts = [refusal for refusal in plan.refusals if refusal.kind == "conflict" and refusal.slot]
    assert {refusal.slot for refusal in conflicts} <= contested
    assert [slot for slot in contested if not any(f"wants {slot} = " in refusal.reason for refusal in conflicts)] == []
    assert contested.isdisjoint(in_force)


def test_three_quirks_that_disagree_give_the_same_conflict_in_every_order(
    make_context: Callable[..., RunContext], make_quirk: Callable[..., Quirk], loaded: Callable[..., Loaded]
) -> None:
    values = ("auto", "dummy", "auto")
    quirks = [loaded(make_quirk(id=f"q{n}", adjustments=Require("engine.load_format", v))) for n, v in enumerate(values)]

    plans = {resolve(make_context(), order).to_json() for order in itertools.permutations(quirks)}

    assert len(plans) == 1
