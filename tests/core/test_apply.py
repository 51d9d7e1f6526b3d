"""Putting a plan into force in a process: the environment is set, handed down and restored; a refused plan changes nothing."""

from __future__ import annotations

import gc
import logging
import os
import sys

import pytest

from quirks_core import Advise, Default, Refuse, setting
from quirks_core.apply import process
from quirks_core.apply.handed_down import PLAN_VARIABLE
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.hook import engine_config
from quirks_core.hook.in_force import in_force
from quirks_core.plan.records import ProcessPlan, RefusedError

pytestmark = pytest.mark.usefixtures("own_environment")
VARIABLE = "NCCL_NVLS_ENABLE"


@pytest.fixture
def plan(plan_of):
    """A plan that sets one variable."""
    return plan_of([Default(f"env.{VARIABLE}", "0"), Default("engine.seed", 1)])


def test_a_plan_in_force_leaves_nothing_behind(plan, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    before = dict(os.environ)

    with in_force(plan, {"NAME": "value"}) as applied:
        assert (os.environ[VARIABLE], os.environ["NAME"], applied.folder.is_dir()) == ("0", "value", True)
        assert ProcessPlan.model_validate_json(os.environ[PLAN_VARIABLE]).digest == plan.digest
        assert [(one.before, one.after) for one in process.acknowledgement().effects] == [("1", "0")]

    assert (dict(os.environ), list(tmp_path.glob("model-quirks-*"))) == (before, [])


def test_the_log_of_a_block_has_the_lines_of_its_plan(plan_of, caplog):
    plan = plan_of(Advise("careful", when=setting("refit.scope").one_of("parameters")), undeclared=frozenset({"refit.scope"}))

    with caplog.at_level(logging.INFO, "model_quirks"), in_force(plan):
        pass

    (record,) = caplog.records
    assert record.getMessage() == "undecided: q0: Something goes wrong; decided by refit.scope"  # as a program gives it


def test_one_block_at_a_time_has_a_plan_in_force(plan, make_plan):
    with in_force(plan):
        before = dict(os.environ)
        with pytest.raises(QuirksError, match=f"plan {plan.digest[:12]}… is in force in this process"), in_force(make_plan()):
            pass
        assert dict(os.environ) == before


def test_no_block_begins_beside_an_engine_of_this_process(plan):
    """The end of the block would undo the engine's plan."""
    gc.collect()  # an error in a finalizer, of another test's garbage, would be kept with the frames that it came in between
    config = type("Config", (), {})()  # of an engine that is there as long as it is
    engine_config.check(plan.for_processes.model_copy(update={"adjustments": (), "changes": {}}), config)
    before = dict(os.environ)

    with pytest.raises(QuirksError, match="is in force in this process"), in_force(plan):
        pass

    assert dict(os.environ) == before
    del config
    with in_force(plan):
        assert os.environ[VARIABLE] == "0"


def test_a_refused_plan_changes_nothing(plan_of, tmp_path):
    before, plan = dict(os.environ), plan_of([Default(f"env.{VARIABLE}", "0"), Refuse("no", "none")])

    with pytest.raises(RefusedError, match="refused for 1 reason"):
        in_force(plan).__enter__()

    assert (dict(os.environ), list(tmp_path.glob("model-quirks-*"))) == (before, [])


@pytest.mark.parametrize("names", ["", "lora,model_quirks_transfer"])
def test_plugins_of_vllm_that_leave_ours_out_are_an_error(plan, names, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", names)
    before = dict(os.environ)

    with pytest.raises(UsageError, match=r"out of the engine's processes; set VLLM_PLUGINS='[^']*model_quirks"):
        in_force(plan).__enter__()

    assert dict(os.environ) == before
    monkeypatch.setenv("VLLM_PLUGINS", "lora,model_quirks,model_quirks_transfer")
    with in_force(plan):
        pass


def test_a_variable_set_after_vllm_was_imported_is_a_warning(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", object())

    with in_force(plan) as applied:
        assert applied.warnings == (f"env.{VARIABLE} was set after vLLM was imported; this process may not see it",)
