"""Patches in a plan: one owner per target, and no patch on a source it was not written against."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from quirks_core import ABSENT, Patch, Plan, Quirk, RunContext
from quirks_core.fingerprints import fingerprint

TARGET = "fake_engine.module:Engine.step"
INSTALLED = {"fake-engine": "1.0"}


@pytest.fixture(autouse=True)
def fake_engine(write_modules: Callable[[dict[str, str]], None]) -> None:
    """An engine to patch."""
    write_modules(
        {"fake_engine/__init__.py": "", "fake_engine/module.py": "class Engine:\n    def step(self):\n        return 1\n"}
    )


@pytest.fixture
def plan_patches(
    make_plan: Callable[..., Plan], make_quirk: Callable[..., Quirk], make_context: Callable[..., RunContext]
) -> Callable[..., Plan]:
    """Plans one quirk per patch, on an installed engine."""

    def make(*patches: Patch, assumed: frozenset[str] = frozenset()) -> Plan:
        quirks = [make_quirk(id=f"patch-{number}", adjustments=patch) for number, patch in enumerate(patches)]
        return make_plan(*quirks, context=make_context(packages=INSTALLED, assumed=assumed))

    return make


def test_a_patch_on_the_source_it_was_written_against_is_planned(plan_patches: Callable[..., Plan]) -> None:
    found = fingerprint(TARGET)

    plan = plan_patches(Patch(TARGET, wrapper="mine:function", expects=("another", found)))

    assert [(patch.target, patch.fingerprint, patch.quirk.id) for patch in plan.patches] == [(TARGET, found, "patch-0")]
    assert (plan.refusals, plan.warnings) == ((), ())


def test_a_patch_that_adds_what_is_absent_is_planned(plan_patches: Callable[..., Plan]) -> None:
    plan = plan_patches(Patch("fake_engine.module:Engine.stop", replacement="mine:function", expects=(ABSENT,)))

    assert [patch.fingerprint for patch in plan.patches] == [ABSENT]


@pytest.mark.parametrize(
    ("target", "now"), [(TARGET, "no line digests were kept"), ("fake_engine.module:Engine.gone", "does not exist")]
)
def test_a_patch_on_a_changed_source_is_refused(plan_patches: Callable[..., Plan], target: str, now: str) -> None:
    plan = plan_patches(Patch(target, wrapper="mine:function", expects=("0" * 64,)))

    (refusal,) = plan.refusals
    assert (refusal.kind, plan.patches) == ("drift", ())
    assert f"{target} is not the source this patch was written against (fake-engine 1.0)" in refusal.reason
    assert now in refusal.reason
    assert refusal.remedy == "upgrade example-quirks, or install a fake-engine that it supports"
    assert refusal.switch == "--disable patch-0 (or quirks.disable: [patch-0])"


def test_a_patch_on_an_assumed_package_is_not_checked_and_says_so(plan_patches: Callable[..., Plan]) -> None:
    plan = plan_patches(Patch(TARGET, wrapper="mine:function", expects=("0" * 64,)), assumed=frozenset(INSTALLED))

    assert (len(plan.patches), plan.refusals) == (1, ())
    assert plan.warnings == (f"patch-0: {TARGET} is not checked: fake-engine is assumed or not installed",)


def test_a_target_at_the_top_of_a_package_is_checked_too(plan_patches: Callable[..., Plan]) -> None:
    plan = plan_patches(Patch("fake_engine:start", wrapper="mine:function", expects=("0" * 64,)))

    assert [refusal.kind for refusal in plan.refusals] == ["drift"]


@pytest.mark.parametrize("kinds", [("replacement", "replacement"), ("replacement", "wrapper"), ("wrapper", "replacement")])
def test_a_replaced_target_has_one_owner_and_the_conflict_names_both(
    plan_patches: Callable[..., Plan], kinds: tuple[str, str]
) -> None:
    found = fingerprint(TARGET)
    patches = [Patch(TARGET, **{kind: f"mine:{name}"}, expects=found) for kind, name in zip(kinds, ("one", "two"), strict=True)]

    plan = plan_patches(*patches)

    (refusal,) = plan.refusals
    assert (refusal.kind, [quirk.id for quirk in refusal.quirks]) == ("conflict", ["patch-0", "patch-1"])
    assert refusal.reason.startswith(f"{TARGET} is patched by several quirks, and one of them replaces it")
    for words in ("patch-0 (example-quirks 1.2, ", "patch-1 (example-quirks 1.2, ", "conftest.py:"):
        assert words in refusal.reason
    assert sorted(re.findall(r"quirks\.disable: \[(.*?)\]", refusal.switch)) == ["patch-0", "patch-1"]


@pytest.mark.parametrize("inner", ["wrapper", "replacement"])
def test_what_lies_in_a_replaced_target_has_the_same_owner_and_the_conflict_names_both(
    plan_patches: Callable[..., Plan], inner: str
) -> None:
    whole = Patch("fake_engine.module:Engine", replacement="mine:Engine", expects=fingerprint("fake_engine.module:Engine"))

    plan = plan_patches(whole, Patch(TARGET, **{inner: "mine:step"}, expects=fingerprint(TARGET)))

    (refusal,) = plan.refusals
    assert (refusal.kind, [quirk.id for quirk in refusal.quirks]) == ("conflict", ["patch-0", "patch-1"])
    assert refusal.reason.startswith(f"fake_engine.module:Engine is replaced, and {TARGET} in it is patched")
    assert sorted(re.findall(r"quirks\.disable: \[(.*?)\]", refusal.switch)) == ["patch-0", "patch-1"]


def test_a_wrapped_class_and_a_wrapped_method_of_it_get_along(plan_patches: Callable[..., Plan]) -> None:
    targets = ("fake_engine.module:Engine", TARGET)

    plan = plan_patches(*(Patch(target, wrapper="mine:wrapper", expects=fingerprint(target)) for target in targets))

    assert (len(plan.patches), plan.refusals) == (2, ())


def test_wrappers_of_one_target_get_along_and_are_planned_in_order_of_their_ids(plan_patches: Callable[..., Plan]) -> None:
    found = fingerprint(TARGET)

    plan = plan_patches(*(Patch(TARGET, wrapper=f"mine:{name}", expects=found) for name in ("one", "two", "three")))

    assert [patch.quirk.id for patch in plan.patches] == ["patch-0", "patch-1", "patch-2"]
    assert plan.refusals == ()


def test_the_plan_shows_which_lines_of_a_drifted_target_are_new(
    plan_patches: Callable[..., Plan], write_modules: Callable[[dict[str, str]], None]
) -> None:
    known = fingerprint(TARGET, lines=True)
    write_modules({"fake_engine/module.py": "class Engine:\n    def step(self):\n        self.count()\n        return 1\n"})

    (refusal,) = plan_patches(Patch(TARGET, wrapper="mine:function", expects=known)).refusals

    assert "+     self.count()" in refusal.reason


def test_patches_of_different_targets_get_along_and_are_sorted(plan_patches: Callable[..., Plan]) -> None:
    targets = ["fake_engine.module:z", "fake_engine.module:a"]

    plan = plan_patches(*(Patch(target, replacement="mine:function", expects=(ABSENT,)) for target in targets))

    assert ([patch.target for patch in plan.patches], plan.refusals) == (sorted(targets), ())
