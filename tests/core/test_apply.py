"""Putting a plan into force: the environment is set, handed down and restored; a refused plan changes nothing."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable

import pytest

from quirks_core import Default, Plan, Quirk, QuirksError, Refuse, RefusedError, UsageError
from quirks_core.apply import apply
from quirks_core.bootstrap import FOLDER_VARIABLE, ORDERS_VARIABLE
from quirks_core.plan import Orders

pytestmark = pytest.mark.usefixtures("own_folders")

MakePlan = Callable[..., Plan]
MakeQuirk = Callable[..., Quirk]
VARIABLE = "VLLM_USE_V1"


@pytest.fixture
def plan(make_plan: MakePlan, make_quirk: MakeQuirk) -> Plan:
    """A plan that sets one variable."""
    return make_plan(make_quirk(adjustments=(Default(f"env.{VARIABLE}", "0"), Default("engine.seed", 1))))


def test_variables_of_the_plan_are_set(plan: Plan) -> None:
    environ: dict[str, str] = {}

    applied = apply(plan, environ=environ)

    assert environ[VARIABLE] == "0"
    assert [(effect.slot, effect.before, effect.after) for effect in applied.effects] == [(f"env.{VARIABLE}", None, "0")]


def test_the_orders_and_the_folder_are_handed_down(plan: Plan) -> None:
    environ: dict[str, str] = {}

    applied = apply(plan, environ=environ)

    assert Orders.model_validate_json(environ[ORDERS_VARIABLE]).digest == plan.digest
    assert environ[FOLDER_VARIABLE] == str(applied.folder)


def test_the_folder_is_private(plan: Plan) -> None:
    assert stat.S_IMODE(apply(plan, environ={}).folder.stat().st_mode) == 0o700


def test_undo_restores_the_environment_and_removes_the_folder(plan: Plan) -> None:
    before = {VARIABLE: "1", FOLDER_VARIABLE: "/another", "OTHER": "x"}
    environ = dict(before)
    applied = apply(plan, environ=environ)
    (applied.folder / "ack-1.json").touch()

    applied.undo()

    assert (environ, applied.folder.exists()) == (before, False)


def test_undo_restores_what_was_there_before_the_first_of_several_changes(plan: Plan) -> None:
    environ = {"NAME": "first"}
    applied = apply(plan, environ=environ)
    applied.set("NAME", "second")
    applied.set("NAME", "third")

    applied.undo()

    assert environ == {"NAME": "first"}


def test_undoing_twice_changes_nothing(plan: Plan) -> None:
    environ: dict[str, str] = {}
    applied = apply(plan, environ=environ)
    applied.undo()
    environ[VARIABLE] = "1"

    applied.undo()

    assert environ == {VARIABLE: "1"}


def test_a_plan_within_a_plan_is_undone_alone(plan: Plan, make_plan: MakePlan) -> None:
    environ: dict[str, str] = {}
    outer = apply(plan, environ=environ)
    during = dict(environ)

    apply(make_plan(), environ=environ).undo()

    assert environ == during
    outer.undo()
    assert environ == {}


def test_a_refused_plan_changes_nothing(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    environ: dict[str, str] = {}
    plan = make_plan(make_quirk(adjustments=(Default(f"env.{VARIABLE}", "0"), Refuse("no", "none"))))

    with pytest.raises(RefusedError):
        apply(plan, environ=environ)

    assert environ == {}


@pytest.mark.parametrize("names", ["", "lora", "model_quirks", "lora,model_quirks_transfer"])
def test_plugins_of_vllm_that_leave_ours_out_are_an_error_that_says_what_to_set(plan: Plan, names: str) -> None:
    environ = {"VLLM_PLUGINS": names}

    with pytest.raises(UsageError, match="keeps quirks out of the engine's processes; set VLLM_PLUGINS=") as error:
        apply(plan, environ=environ)

    proposed = str(error.value).partition("set VLLM_PLUGINS='")[2].partition("'")[0]
    assert set(proposed.split(",")) == {*filter(None, names.split(",")), "model_quirks", "model_quirks_transfer"}
    assert environ == {"VLLM_PLUGINS": names}


def test_plugins_of_vllm_that_name_ours_are_fine(plan: Plan) -> None:
    apply(plan, environ={"VLLM_PLUGINS": "lora,model_quirks,model_quirks_transfer"}).undo()


@pytest.mark.parametrize("character", ["x", "\u00e4"])
def test_orders_that_no_environment_can_hold_are_an_error_in_bytes(
    make_plan: MakePlan, make_quirk: MakeQuirk, character: str
) -> None:
    quirk = make_quirk(adjustments=Default("engine.load_format", character * (130_000 // len(character.encode()))))
    environ: dict[str, str] = {}

    with pytest.raises(QuirksError, match="bytes, more than fits"):
        apply(make_plan(quirk), environ=environ)

    assert environ == {}


def test_a_variable_set_after_vllm_was_imported_is_a_warning(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", object())

    assert apply(plan, environ={}).warnings == [f"env.{VARIABLE} was set after vLLM was imported; this process may not see it"]
