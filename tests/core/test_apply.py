"""Putting a plan into force: the environment is set, handed down and restored; a refused plan changes nothing."""

from __future__ import annotations

import stat
import sys

import pytest

from quirks_core import Default, Refuse
from quirks_core.apply.driver import apply
from quirks_core.apply.handed_down import FOLDER_VARIABLE, PLAN_VARIABLE
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.plan.records import ProcessPlan, RefusedError

pytestmark = pytest.mark.usefixtures("own_environment")
VARIABLE = "NCCL_NVLS_ENABLE"


@pytest.fixture
def plan(plan_of):
    """A plan that sets one variable."""
    return plan_of([Default(f"env.{VARIABLE}", "0"), Default("engine.seed", 1)])


def test_variables_are_set_and_plan_and_a_private_folder_are_handed_down(plan):
    environ = {}

    applied = apply(plan, environ=environ)

    assert [(effect.slot, effect.before, effect.after) for effect in applied.effects] == [(f"env.{VARIABLE}", None, "0")]
    assert (environ[VARIABLE], environ[FOLDER_VARIABLE]) == ("0", str(applied.folder))
    assert ProcessPlan.model_validate_json(environ[PLAN_VARIABLE]).digest == plan.digest
    assert stat.S_IMODE(applied.folder.stat().st_mode) == 0o700
    assert environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_undo_restores_the_environment_and_removes_the_folder_once(plan):
    before = {VARIABLE: "1", FOLDER_VARIABLE: "/another", "NAME": "first"}
    environ = dict(before)
    applied = apply(plan, environ=environ)
    applied.set("NAME", "second")
    applied.set("NAME", "third")
    (applied.folder / "ack-1.json").touch()

    applied.undo()

    assert (environ, applied.folder.exists()) == (before, False)
    environ[VARIABLE] = "2"
    applied.undo()
    assert environ[VARIABLE] == "2"


def test_a_plan_within_a_plan_is_undone_alone(plan, make_plan):
    environ = {}
    outer = apply(plan, environ=environ)
    during = dict(environ)

    apply(make_plan(), environ=environ).undo()

    assert environ == during
    outer.undo()
    assert environ == {}


@pytest.mark.parametrize(
    ("wanted", "environ", "error", "words"),
    [
        ([Refuse("no", "none")], {}, RefusedError, "refused for 1 reason"),
        ([Default("engine.load_format", "x" * 65_000)], {}, QuirksError, r"takes 13\d{4} bytes, more than fits"),
        ([Default("engine.load_format", "ä" * 32_000)], {}, QuirksError, r"takes 12\d{4} bytes, more than fits"),
        ([], {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, UsageError, "keeps quirks out of the engine's processes: a forked"),
    ],
    ids=["refused", "too large", "too large in bytes", "forked"],
)
def test_a_plan_that_cannot_be_applied_changes_nothing(plan_of, tmp_path, wanted, environ, error, words):
    before, plan = dict(environ), plan_of([Default(f"env.{VARIABLE}", "0"), *wanted])

    with pytest.raises(error, match=words):
        apply(plan, environ=environ)

    assert (environ, list(tmp_path.glob("model-quirks-*"))) == (before, [])


@pytest.mark.parametrize("names", ["", "lora", "model_quirks", "lora,model_quirks_transfer"])
def test_plugins_of_vllm_that_leave_ours_out_are_an_error_that_says_what_to_set(plan, names):
    environ = {"VLLM_PLUGINS": names}

    with pytest.raises(UsageError, match="keeps quirks out of the engine's processes; set VLLM_PLUGINS=") as error:
        apply(plan, environ=environ)

    proposed = str(error.value).partition("set VLLM_PLUGINS='")[2].partition("'")[0]
    assert set(proposed.split(",")) == {*filter(None, names.split(",")), "model_quirks", "model_quirks_transfer"}
    assert environ == {"VLLM_PLUGINS": names}
    apply(plan, environ={"VLLM_PLUGINS": proposed}).undo()


def test_a_variable_set_after_vllm_was_imported_is_a_warning(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", object())

    assert apply(plan, environ={}).warnings == [f"env.{VARIABLE} was set after vLLM was imported; this process may not see it"]
