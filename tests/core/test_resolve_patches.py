"""Patches in a plan: one owner per target, and no patch on a source it was not written against."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import ABSENT, Patch, Plan, Quirk, RunContext, sources

TARGET = "fake_engine.module:Engine.step"
INSTALLED = {"fake_engine": "1.0"}


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
    found = sources.fingerprint(TARGET)

    plan = plan_patches(Patch(TARGET, "mine:function", ("another", found)))

    assert [(patch.target, patch.fingerprint, patch.quirk.id) for patch in plan.patches] == [(TARGET, found, "patch-0")]
    assert (plan.refusals, plan.warnings) == ((), ())


def test_a_patch_that_adds_what_is_absent_is_planned(plan_patches: Callable[..., Plan]) -> None:
    plan = plan_patches(Patch("fake_engine.module:Engine.stop", "mine:function", (ABSENT,)))

    assert [patch.fingerprint for patch in plan.patches] == [ABSENT]


@pytest.mark.parametrize(("target", "now"), [(TARGET, "has fingerprint"), ("fake_engine.module:Engine.gone", "does not exist")])
def test_a_patch_on_a_changed_source_is_refused(plan_patches: Callable[..., Plan], target: str, now: str) -> None:
    plan = plan_patches(Patch(target, "mine:function", ("0" * 64,)))

    (refusal,) = plan.refusals
    assert (refusal.kind, plan.patches) == ("drift", ())
    assert f"{target} is not the source this patch was written against (fake_engine 1.0: the target {now}" in refusal.reason
    assert refusal.remedy == "upgrade example-quirks, or install a fake_engine that it supports"
    assert refusal.switch == "--disable patch-0 (or quirks.disable: [patch-0])"


def test_a_patch_on_an_assumed_package_is_not_checked_and_says_so(plan_patches: Callable[..., Plan]) -> None:
    plan = plan_patches(Patch(TARGET, "mine:function", ("0" * 64,)), assumed=frozenset(INSTALLED))

    assert (len(plan.patches), plan.refusals) == (1, ())
    assert plan.warnings == (f"patch-0: {TARGET} is not checked: fake_engine is assumed or not installed",)


def test_a_target_at_the_top_of_a_package_is_checked_too(plan_patches: Callable[..., Plan]) -> None:
    plan = plan_patches(Patch("fake_engine:start", "mine:function", ("0" * 64,)))

    assert [refusal.kind for refusal in plan.refusals] == ["drift"]


def test_two_owners_of_one_target_are_a_conflict_that_names_both(plan_patches: Callable[..., Plan]) -> None:
    found = sources.fingerprint(TARGET)

    plan = plan_patches(Patch(TARGET, "mine:one", (found,)), Patch(TARGET, "mine:two", (found,)))

    (refusal,) = plan.refusals
    assert (refusal.kind, refusal.reason) == ("conflict", f"{TARGET} is patched by several quirks: patch-0, patch-1")
    assert refusal.switch == (
        "--disable patch-0 (or quirks.disable: [patch-0]) or --disable patch-1 (or quirks.disable: [patch-1])"
    )


def test_patches_of_different_targets_get_along_and_are_sorted(plan_patches: Callable[..., Plan]) -> None:
    targets = ["fake_engine.module:z", "fake_engine.module:a"]

    plan = plan_patches(*(Patch(target, "mine:function", (ABSENT,)) for target in targets))

    assert ([patch.target for patch in plan.patches], plan.refusals) == (sorted(targets), ())
