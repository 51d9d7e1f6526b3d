"""Inside each vLLM process: carries out the plan it finds, once, and acknowledges with the same digest."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from quirks_core import bootstrap
from quirks_core.apply import handed_down, imports, process
from quirks_core.base.errors import QuirksError, ReceiptError
from quirks_core.hook import engine_config, processes
from quirks_core.hook.in_force import in_force
from quirks_core.plan.records import PlannedAdjustment, ProcessPlan
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.registry import Registry

pytestmark = pytest.mark.usefixtures("own_environment")

ENGINE = 'class Engine:\n    def step(self):\n        return "step"\n\n    def stop(self):\n        return "stop"\n'
PLUGIN = """
from quirks_core.source.vllm_source import INSTALLED

def patch(name, wrapper="wrap", **more):
    target = f"fake_engine.module:Engine.{name}"
    return Patch(target, wrapper=f"fake_plugin:{wrapper}", expects=INSTALLED.fingerprint(target), **more)

def wrap(original):
    return lambda self: f"patched {original(self)}"

def wrap_other(original):
    return lambda self: f"other {original(self)}"

@hookimpl
def quirks_declare():
    old = patch("step", "wrap_other", when=model_type("gemma3"))
    now = patch("step", when=model_type("qwen3"))
    return [
        make("fake-step", adjustments=(old, now, Default("env.FAKE_VARIABLE", "1"))),
        make("fake-stop", adjustments=patch("stop")),
    ]
"""
SLOTS = ["env.FAKE_VARIABLE", "patch.fake_engine.module:Engine.step", "patch.fake_engine.module:Engine.stop"]
PATCHED = ("patched step", "patched stop")


@pytest.fixture
def plan_for(write_modules, load_fakes, find_fakes, make_context):
    """Plans for an installed fake engine with an installed plugin that patches it."""
    write_modules({"fake_engine/__init__.py": "", "fake_engine/module.py": ENGINE})
    load_fakes(fake_plugin=PLUGIN)

    def make(*disable):
        switches = Switches.gather(command_line=SwitchNames(disable), environ={})
        plan = Registry.load(find_fakes()).resolve(make_context(packages={"fake-engine": "1.0"}, assumed=frozenset()), switches)
        plan.check()
        return plan

    return make


@pytest.fixture
def applied(own_environment, plan_for):  # noqa: ARG001 - whichever order a test asks for them in
    """The plan handed down to the processes that this one starts, and not in force in this one."""
    plan = plan_for()
    engine_config.hand_down(plan.for_processes, {})
    os.environ[handed_down.HOOK_VARIABLE] = "on"
    yield plan
    process.undo()


def step_and_stop():
    """What the engine does now."""
    engine = importlib.import_module("fake_engine.module").Engine()
    return engine.step(), engine.stop()


def test_a_process_acknowledges_all_that_it_carries_out(applied):
    os.environ.pop("FAKE_VARIABLE")  # not by monkeypatch: it would put it back after the test

    process.carry_out(applied.for_processes)

    assert [effect.pending for effect in process.acknowledgement().effects] == [False, True, True]
    assert (step_and_stop(), os.environ["FAKE_VARIABLE"]) == (PATCHED, "1")
    acknowledgement = process.acknowledgement()
    assert (acknowledgement.pid, acknowledgement.process) == (os.getpid(), "MainProcess")
    assert acknowledgement.digest == applied.digest
    assert [effect.slot for effect in acknowledgement.effects] == SLOTS
    assert [effect.after for effect in acknowledgement.effects] == ["1", "fake_plugin:wrap", "fake_plugin:wrap"]


def test_a_second_engine_of_one_plan_has_its_variables_too(applied):
    process.carry_out(applied.for_processes)

    engine_config.hand_down(applied.for_processes, {})  # the first engine is gone, and its variables with it
    process.carry_out(applied.for_processes)

    assert os.environ["FAKE_VARIABLE"] == "1"


@pytest.mark.parametrize("imported", ["before", "after"])
def test_undoing_the_plan_leaves_nothing_of_it(plan_for, tmp_path, imported):
    handlers = list(logging.getLogger("vllm").handlers)
    with in_force(plan_for()):
        process.keep_errors(tmp_path)
        if imported == "before":
            step_and_stop()

    assert step_and_stop() == ("step", "stop")
    assert logging.getLogger("vllm").handlers == handlers
    assert handed_down.PLAN_VARIABLE not in os.environ


def test_the_bootstrap_imports_nothing_without_a_plan():
    text = "import sys\nfrom quirks_core.bootstrap import bootstrap\nbefore = set(sys.modules)\nbootstrap()\n"
    text += "ours = sorted(name for name in sys.modules if name.startswith('quirks_core'))\n"
    text += "print(sorted(set(sys.modules) - before), ours, 'pydantic' in sys.modules)"

    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert (
        ended.stdout
        == "[] ['quirks_core', 'quirks_core.apply', 'quirks_core.apply.handed_down', 'quirks_core.bootstrap'] False\n"
    )


def test_a_plan_with_the_same_patches_leaves_them_untouched(plan_for):
    first = plan_for().for_processes
    second = first.model_copy(update={"context": "another run"})
    process.carry_out(first)
    assert step_and_stop() == PATCHED
    patched = importlib.import_module("fake_engine.module").Engine.step

    for again in (first, second, second):
        process.carry_out(again)

    assert process.acknowledgement().digest == second.digest != first.digest
    assert importlib.import_module("fake_engine.module").Engine.step is patched
    acknowledgement = process.acknowledgement({"engine.seed": 3})
    assert [effect.slot for effect in acknowledgement.effects] == SLOTS
    assert (acknowledgement.digest, acknowledgement.engine) == (second.digest, {"engine.seed": 3})
    process.carry_out(plan_for("fake-step").for_processes)
    assert step_and_stop() == ("step", "patched stop")


@pytest.mark.parametrize("name", ["__init__", "init_worker"])
def test_a_plan_in_the_configuration_of_an_engine_is_carried_out(plan_for, name, monkeypatch):
    """Also on a node whose environment has nothing of ours."""
    monkeypatch.setattr(imports, "_finder", imports._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    plan = plan_for().for_processes

    class Config:
        additional_config: ClassVar = {"model_quirks": plan.model_dump(mode="json"), "other": 1}

    def load_plugins():
        bootstrap.bootstrap()

    def engine(vllm_config):  # noqa: ARG001 - found by its name
        load_plugins()

    engine.__name__ = name
    engine(Config())

    assert (process.acknowledgement().digest, step_and_stop()) == (plan.digest, PATCHED)


def test_a_forked_process_acknowledges_for_itself(applied):
    process.carry_out(applied.for_processes)

    child = os.fork()
    if child == 0:  # no assertion, no fixture, no coverage of the parent may run here
        process.carry_out(applied.for_processes)
        is_own = process.acknowledgement().pid == os.getpid()
        os._exit(0 if is_own and step_and_stop() == PATCHED else 1)
    _, status = os.waitpid(child, 0)

    assert status == 0


@pytest.mark.parametrize("changes", [{"distribution": "other-dist"}, {"version": "9.9"}, {"id": "other-quirk"}])
def test_a_quirk_that_this_process_lacks_is_named_and_leaves_no_patch_behind(plan_for, changes):
    plan = plan_for().for_processes.model_dump()
    plan["patches"][1]["quirk"].update(changes)

    with pytest.raises(QuirksError, match=f"this process cannot load quirk .*{next(iter(changes.values()))}"):
        process.carry_out(ProcessPlan.model_validate(plan))

    assert (step_and_stop(), process.acknowledgement().digest) == (("step", "stop"), "")


@pytest.mark.parametrize("text", ["", '{"context": "x", "colour": "red"}'])
def test_a_plan_that_cannot_be_read_is_a_clear_error(monkeypatch, text):
    monkeypatch.setenv(handed_down.PLAN_VARIABLE, text)
    monkeypatch.setenv(handed_down.HOOK_VARIABLE, "on")

    with pytest.raises(QuirksError, match=f"handed down in {handed_down.PLAN_VARIABLE} cannot be read"):
        bootstrap.bootstrap()


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ({"digest": "0" * 64}, "carries out plan 000000000000… instead of"),
        ({"digest": ""}, "carries out no plan"),
        ({"engine": {"engine.enforce_eager": False}}, r"engine\.enforce_eager: the plan wanted .*True, the engine has False"),
    ],
)
def test_a_worker_with_another_plan_or_value_stops_the_engine(plan_for, worker, words):
    """Whose core is this process."""
    line = PlannedAdjustment(
        slot="engine.enforce_eager", value=True, strength="require", flag="f", status="applied", reason="", quirks=()
    )
    plan = plan_for().for_processes.model_copy(update={"adjustments": (line,)})
    process.carry_out(plan)
    right = process.acknowledgement({"engine.enforce_eager": True}).model_dump(mode="json")
    config = SimpleNamespace(additional_config={handed_down.CARRIED: plan.model_dump(mode="json")})
    executor = SimpleNamespace(vllm_config=config, collective_rpc=lambda _: [right, right | {"pid": 1} | worker])

    with pytest.raises(ReceiptError, match=words):
        processes.prove(executor)
