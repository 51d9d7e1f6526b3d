"""Patches in a plan: one owner per target, and no patch on a source it was not written against."""

from __future__ import annotations

import re

import pytest

from quirks_core import Affected, Default, Patch, StaticProbe
from quirks_core.declaration import versions
from quirks_core.declaration.quirk import Location
from quirks_core.plan.records import NoteKind, State
from quirks_core.source.vllm_source import INSTALLED

MODULE = "fake_engine.module"
CLASS, TARGET = f"{MODULE}:Engine", f"{MODULE}:Engine.step"
PACKAGES = {"fake-engine": "1.0"}
ENGINE = {
    "fake_engine/__init__.py": "",
    "fake_engine/module.py": "class Engine:\n    def step(self):\n        return 1\n",
}


@pytest.fixture
def plan_patches(plan_of, write_modules):
    """Plans one quirk per patch (or list of some), on an installed engine."""
    write_modules(ENGINE)
    return lambda *patches, assumed=frozenset(): plan_of(*patches, packages=PACKAGES, assumed=assumed)


def patch_of(kind, target=TARGET, name="f"):
    """A patch that was written against the source as it is."""
    return Patch(target, **{kind: f"mine:{name}"}, **({} if kind == "adds" else {"expects": INSTALLED.fingerprint(target)}))


def test_a_patch_on_the_source_it_was_written_against_is_planned(plan_patches):
    """However long its fingerprint is."""
    found = INSTALLED.fingerprint(TARGET)

    plan = plan_patches(Patch(TARGET, wrapper="mine:f", expects=("another-one!", found + "0" * 52)))

    assert [(patch.target, patch.fingerprint, patch.quirk.id) for patch in plan.patches] == [(TARGET, found, "q0")]
    assert (plan.refusals, plan.warnings) == ((), ())


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (Patch(TARGET, wrapper="m:f", expects="0" * 12), f", and the quirk expects {'0' * 12}"),
        (Patch(f"{CLASS}.gone", wrapper="m:f", expects="0" * 12), f"{CLASS} has no gone"),
        (Patch("fake_engine:start", wrapper="m:f", expects="0" * 12), "fake_engine has no start"),
        (Patch(TARGET, adds="m:f"), f"{TARGET} exists by now, and the patch was written to add it"),
        (Patch(f"{MODULE}:Gone.step", adds="m:f"), f"{MODULE} has no Gone"),
        (Patch("fake_engine.gone:step", adds="m:f"), "the installed packages have no module fake_engine.gone"),
    ],
    ids=["changed", "gone", "top of the package", "exists by now", "home is missing", "module is missing"],
)
def test_a_patch_on_another_source_is_refused_unless_assumed(plan_patches, patch, words):
    plan, assumed = plan_patches(patch), plan_patches(patch, assumed=frozenset(PACKAGES))

    (refusal,) = plan.refusals
    assert (refusal.kind, plan.patches, words in refusal.reason) == ("drift", (), True)
    where = "(fake-engine 1.0 is installed)"
    assert refusal.remedy == f"upgrade example-quirks, or install a version of fake-engine that it supports {where}"
    assert refusal.switch == "--disable q0 (or quirks.disable: [q0])"
    assert (len(assumed.patches), assumed.refusals) == (1, ())
    assert refusal.target == patch.target
    assert [(note.kind, note.quirk, note.about) for note in assumed.warnings] == [
        (NoteKind.UNCHECKED, "q0", (patch.target,)),
    ]


@pytest.mark.parametrize(
    ("kinds", "targets", "reason"),
    [
        *(
            (kinds, (TARGET, TARGET), f"{TARGET} is patched by several quirks, and one of them replaces it")
            for kinds in (("replacement", "replacement"), ("replacement", "wrapper"), ("wrapper", "replacement"))
        ),
        (("adds", "adds"), ("fake_engine:new", "fake_engine:new"), "fake_engine:new is patched by several quirks"),
        (("replacement", "wrapper"), (CLASS, TARGET), f"{CLASS} is replaced, and {TARGET} in it is patched"),
        (("replacement", "replacement"), (CLASS, TARGET), f"{CLASS} is replaced, and {TARGET} in it is patched"),
    ],
)
def test_code_that_is_replaced_or_added_has_one_owner(plan_patches, kinds, targets, reason):
    (refusal,) = plan_patches(*(patch_of(kind, target) for kind, target in zip(kinds, targets, strict=True))).refusals

    assert (refusal.kind, [quirk.id for quirk in refusal.quirks]) == ("conflict", ["q0", "q1"])
    assert refusal.reason.startswith(reason)
    assert sorted(re.findall(r"quirks\.disable: \[(.*?)\]", refusal.switch)) == ["q0", "q1"]


def test_one_quirk_that_patches_a_target_twice_is_refused(plan_patches):
    (refusal,) = plan_patches([patch_of("wrapper", name=name) for name in "ab"]).refusals

    assert refusal.reason.startswith(f"{TARGET} is patched twice by one quirk")


def test_wrappers_are_planned_in_order_without_a_conflict(plan_patches):
    plan = plan_patches(*(patch_of("wrapper", target) for target in (TARGET, CLASS, TARGET)))

    assert [(patch.target, patch.quirk.id) for patch in plan.patches] == [(CLASS, "q1"), (TARGET, "q0"), (TARGET, "q2")]
    assert plan.refusals == ()


_FROM_2 = Affected("fake-engine", introduced="2.0")


@pytest.fixture
def plan_older(write_modules, make_context, make_quirk, make_plan, monkeypatch):
    """Plans one quirk on version 1.0 of the engine, which is older than all that was examined."""
    write_modules(ENGINE)
    monkeypatch.setitem(versions.OLDEST, "fake-engine", "2.0")

    def plan(adjustment, affected=_FROM_2, *, assumed=(), evidence=()):
        context = make_context(packages=PACKAGES, assumed=frozenset(assumed))
        place = Location("quirks_plugins/x.py", 1, "quirks_plugins.x")  # of third parties' quirks nobody examined anything
        quirk = make_quirk(id="q0", adjustments=adjustment, affected=affected, evidence=evidence, location=place)
        found = make_plan(quirk, context=context)
        assert found.refusals == ()
        return found.verdicts[0], found

    return plan


def test_a_quirk_is_off_with_a_note_where_nobody_examined_it(plan_older):
    verdict, plan = plan_older(Default("engine.enforce_eager", True))

    assert (verdict.state, plan.changes, plan.undecided) == (State.NOT_EXAMINED, {}, {})
    assert "earlier versions were not examined" in verdict.because
    assert [str(note) for note in plan.warnings] == ["not examined on fake-engine 1.0, and therefore off: q0"]


@pytest.mark.parametrize(
    ("patch", "more", "state"),
    [
        (True, {}, State.ACTIVE),  # the source that it was written against settles it
        (True, {"assumed": ["fake-engine"]}, State.NOT_EXAMINED),
        *(
            (False, {"affected": affected}, State.NOT_EXAMINED)
            for affected in (_FROM_2, Affected("fake-engine", introduced="0.5"), ())
        ),
        (None, {"evidence": StaticProbe(MODULE, "return 1", found_means_affected=True)}, State.ACTIVE),
        (None, {"evidence": StaticProbe(MODULE, "return 2", found_means_affected=True)}, State.NOT_EXAMINED),
    ],
)
def test_the_installed_source_settles_a_version_nobody_examined(plan_older, patch, more, state):
    other = Patch(TARGET, wrapper="mine:f", expects="0" * 12)

    verdict, plan = plan_older({True: patch_of("wrapper"), False: other, None: Default("engine.seed", 1)}[patch], **more)

    assert (verdict.state, bool(plan.patches)) == (state, patch is True and state is State.ACTIVE)
    assert [note.kind for note in plan.warnings] == [NoteKind.UNEXAMINED] * (state is State.NOT_EXAMINED)
