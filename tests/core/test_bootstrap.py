"""Inside each vLLM process: carries out the plan it finds, once, and acknowledges with the same digest."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import ClassVar

import pytest
from patience import HUNG_S

from quirks_core import bootstrap
from quirks_core.apply import handed_down, imports, process
from quirks_core.apply.driver import apply
from quirks_core.apply.receipt import ReadBack, collect, read_acknowledgements
from quirks_core.base.errors import QuirksError, ReceiptError
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.registry import Registry

pytestmark = pytest.mark.usefixtures("own_environment")

ENGINE = 'class Engine:\n    def step(self):\n        return "step"\n\n    def stop(self):\n        return "stop"\n'
PLUGIN = """
import os
from quirks_core.source.vllm_source import INSTALLED

if os.environ.get("FAKE_FAILS_HERE"):
    raise OSError("no disk in this process")

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
def applied(plan_for):
    """The plan in force in the driver, to be carried out in processes."""
    in_force = apply(plan_for())
    yield in_force
    in_force.undo()


@pytest.fixture
def hand_down(monkeypatch, tmp_path):
    """Hands a plan down to this process as its parent would, in a folder of its own."""

    def hand(plan):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        monkeypatch.setenv(handed_down.PLAN_VARIABLE, plan.for_processes.model_dump_json())
        monkeypatch.setenv(handed_down.FOLDER_VARIABLE, str(folder))
        return folder

    return hand


def step_and_stop():
    """What the engine does now."""
    engine = importlib.import_module("fake_engine.module").Engine()
    return engine.step(), engine.stop()


def test_without_a_plan_or_a_folder_nothing_happens(tmp_path):
    before = dict(os.environ)

    bootstrap.bootstrap()
    process.report_configuration({"engine.seed": 3})

    assert dict(os.environ) == before
    bootstrap.bootstrap()
    assert list(tmp_path.glob("**/ack-*.json")) == []
    process.undo()  # of what was reported


def test_patches_are_installed_variables_set_and_both_acknowledged_with_the_digest(applied):
    os.environ.pop("FAKE_VARIABLE")  # not by monkeypatch: it would put it back after the test

    bootstrap.bootstrap()

    assert (step_and_stop(), os.environ["FAKE_VARIABLE"]) == (PATCHED, "1")
    (acknowledgement,) = read_acknowledgements(applied.folder)
    assert (acknowledgement.pid, acknowledgement.process) == (os.getpid(), "MainProcess")
    assert acknowledgement.digest == applied.plan.digest == process.in_force()
    assert [effect.slot for effect in acknowledgement.effects] == SLOTS
    assert [effect.after for effect in acknowledgement.effects] == ["1", "fake_plugin:wrap", "fake_plugin:wrap"]


def test_a_patch_that_waits_for_its_module_is_acknowledged_as_pending_and_once_more_when_it_is_in_force(applied):
    bootstrap.bootstrap()
    before = read_acknowledgements(applied.folder)[0].effects

    step_and_stop()

    after = read_acknowledgements(applied.folder)[0].effects
    assert ([item.pending for item in before], [item.pending for item in after]) == ([False, True, True], [False] * 3)


def test_a_second_call_changes_nothing(applied):
    bootstrap.bootstrap()
    step_and_stop()  # imports the engine, so that its patches come into force and are acknowledged
    (file,) = applied.folder.glob("ack-*.json")
    written = file.stat().st_mtime_ns

    bootstrap.bootstrap()

    assert (step_and_stop(), file.stat().st_mtime_ns) == (PATCHED, written)


def test_another_plan_replaces_the_first_and_undoes_its_patches(plan_for, hand_down):
    second = plan_for("fake-step")
    hand_down(plan_for())
    bootstrap.bootstrap()
    folder = hand_down(second)

    bootstrap.bootstrap()

    assert (step_and_stop(), process.in_force()) == (("step", "patched stop"), second.digest)
    assert [ack.digest for ack in read_acknowledgements(folder)] == [second.digest]


def test_a_plan_that_fails_half_way_leaves_no_patch_behind(plan_for, hand_down):
    plan = plan_for()
    step, stop = plan.patches
    broken = stop.model_copy(update={"quirk": stop.quirk.model_copy(update={"version": "9.9"})})
    folder = hand_down(plan.model_copy(update={"patches": (step, broken)}))

    with pytest.raises(QuirksError, match="cannot load quirk fake-stop"):
        bootstrap.bootstrap()

    assert (step_and_stop(), read_acknowledgements(folder)) == (("step", "stop"), ())


def test_the_same_plan_in_a_new_folder_is_acknowledged_there(plan_for, hand_down):
    plan = plan_for()
    hand_down(plan)
    bootstrap.bootstrap()
    folder = hand_down(plan)

    bootstrap.bootstrap()

    assert (len(read_acknowledgements(folder)), step_and_stop()) == (1, PATCHED)


def test_while_a_plan_is_in_force_the_driver_cannot_apply_another(applied, plan_for):
    bootstrap.bootstrap()
    before = dict(os.environ)

    with pytest.raises(QuirksError, match=f"plan {applied.plan.digest[:12]}… is in force in this process"):
        apply(plan_for("fake-step"))

    assert dict(os.environ) == before
    applied.undo()
    apply(plan_for("fake-step")).undo()


@pytest.mark.parametrize("imported", ["before", "after"])
def test_undoing_the_plan_takes_patches_and_what_keeps_errors_off(applied, imported):
    handlers = list(logging.getLogger("vllm").handlers)
    bootstrap.bootstrap()
    if imported == "before":
        step_and_stop()
    written = read_acknowledgements(applied.folder)

    process.undo()

    assert (step_and_stop(), read_acknowledgements(applied.folder)) == (("step", "stop"), written)
    assert logging.getLogger("vllm").handlers == handlers
    applied.undo()
    assert handed_down.PLAN_VARIABLE not in os.environ


def test_without_a_plan_and_without_the_hook_nothing_is_imported():
    text = "import sys\nfrom quirks_core.bootstrap import bootstrap\nbefore = set(sys.modules)\nbootstrap()\n"
    text += "ours = sorted(name for name in sys.modules if name.startswith('quirks_core'))\n"
    text += "print(sorted(set(sys.modules) - before), ours, 'pydantic' in sys.modules)"

    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert ended.stdout == "[] ['quirks_core', 'quirks_core.bootstrap', 'quirks_core.apply.handed_down'] False\n"


def test_our_own_workers_plan_is_carried_out_and_the_hook_stays_off(applied, start):
    worker = start("bootstrap()\nimport sys\nprint('quirks_core.hook.start' in sys.modules)", MODEL_QUIRKS="on")

    out, _ = worker.communicate(timeout=HUNG_S)

    assert out == "False\n"
    assert worker.pid in {ack.pid for ack in read_acknowledgements(applied.folder)}


def test_without_a_folder_a_plan_is_in_force_and_another_with_the_same_patches_takes_its_place_untouched(plan_for):
    first = plan_for().for_processes
    second = first.model_copy(update={"context": "another run"})
    process.carry_out(first)
    assert step_and_stop() == PATCHED
    patched = importlib.import_module("fake_engine.module").Engine.step

    process.carry_out(second)

    assert process.in_force() == second.digest != first.digest
    assert importlib.import_module("fake_engine.module").Engine.step is patched
    acknowledgement = process.acknowledgement({"engine.seed": 3})
    assert [effect.slot for effect in acknowledgement.effects] == SLOTS
    assert (acknowledgement.digest, acknowledgement.engine) == (second.digest, {"engine.seed": 3})
    process.carry_out(plan_for("fake-step").for_processes)
    assert step_and_stop() == ("step", "patched stop")


@pytest.mark.parametrize("name", ["__init__", "init_worker"])
def test_a_plan_in_the_configuration_of_the_engine_that_loads_plugins_is_carried_out(plan_for, name, monkeypatch):
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

    assert (process.in_force(), step_and_stop()) == (plan.digest, PATCHED)


def test_a_forked_process_acknowledges_for_itself(applied):
    bootstrap.bootstrap()

    child = os.fork()
    if child == 0:  # no assertion, no fixture, no coverage of the parent may run here
        bootstrap.bootstrap()
        os._exit(0 if step_and_stop() == PATCHED else 1)
    _, status = os.waitpid(child, 0)

    assert (status, {ack.pid for ack in read_acknowledgements(applied.folder)}) == (0, {os.getpid(), child})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"context": 3}', '{"context": "x", "colour": "red"}'])
def test_a_plan_that_cannot_be_read_is_a_clear_error(monkeypatch, tmp_path, text):
    monkeypatch.setenv(handed_down.PLAN_VARIABLE, text)
    monkeypatch.setenv(handed_down.FOLDER_VARIABLE, str(tmp_path))

    with pytest.raises(QuirksError, match=f"handed down in {handed_down.PLAN_VARIABLE} cannot be read"):
        bootstrap.bootstrap()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changes", [{"distribution": "other-dist"}, {"version": "9.9"}, {"id": "other-quirk"}])
def test_a_quirk_that_this_process_does_not_have_is_an_error_that_names_it(applied, changes):
    plan = json.loads(os.environ[handed_down.PLAN_VARIABLE])
    plan["patches"][0]["quirk"].update(changes)
    os.environ[handed_down.PLAN_VARIABLE] = json.dumps(plan)

    with pytest.raises(QuirksError, match=f"this process cannot load quirk .*{next(iter(changes.values()))}"):
        bootstrap.bootstrap()

    assert read_acknowledgements(applied.folder) == ()


def test_what_vllm_logs_as_an_error_is_kept_for_the_driver(applied):
    bootstrap.bootstrap()

    logging.getLogger("vllm").error("the engine is on fire")
    logging.getLogger("vllm").warning("it is warm")

    text = (applied.folder / f"errors-{os.getpid()}.log").read_text(encoding="utf-8")
    assert text == "MainProcess: the engine is on fire\n"


def test_a_process_reports_the_configuration_that_it_runs_with(applied):
    bootstrap.bootstrap()

    process.report_configuration({"engine.seed": 3})

    (acknowledgement,) = read_acknowledgements(applied.folder)
    assert (acknowledgement.engine, len(acknowledgement.effects)) == ({"engine.seed": 3}, 3)


@pytest.fixture
def start(site):
    """Starts processes of the engine, which bootstrap themselves, and ends them after the test."""
    started = []

    def run(body, **environment):
        text = "import time\nfrom quirks_core.bootstrap import bootstrap\n" + textwrap.dedent(body)
        environ = {**os.environ, "PYTHONPATH": str(site), **environment}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        child = subprocess.Popen([sys.executable, "-c", text], env=environ, text=True, **pipes)
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()


def test_processes_of_their_own_carry_out_the_same_plan_and_whoever_is_late_is_waited_for(applied, start):
    works = start("input()\nbootstrap()\nfrom fake_engine.module import Engine\nprint(Engine().step())\ntime.sleep(600)")
    silent = [start("time.sleep(600)") for _ in range(2)]
    names = {works.pid: "worker 0", silent[0].pid: "worker 1", silent[1].pid: "worker 2"}
    with pytest.raises(ReceiptError, match=rf"worker 0 \(process {works.pid}\) did not acknowledge the plan"):
        collect(applied.folder, applied.plan.digest, {works.pid: "worker 0"})

    print(file=works.stdin, flush=True)
    assert works.stdout.readline() == "patched step\n"
    receipt = collect(applied.folder, applied.plan.digest, {works.pid: "worker 0"}, wait_s=HUNG_S)
    with pytest.raises(ReceiptError) as error:
        collect(applied.folder, applied.plan.digest, names, wait_s=0.1)

    assert [(item.slot, item.pending) for item in receipt.processes[0].effects] == [(slot, False) for slot in SLOTS]
    for child, name in zip(silent, ("worker 1", "worker 2"), strict=True):
        assert f"{name} (process {child.pid}) did not acknowledge the plan within 0.1 s" in str(error.value)
    assert "worker 0" not in str(error.value)


def test_a_process_with_another_plan_or_configuration_stops_the_run(applied, make_plan, start):
    other = make_plan()
    astray = start("bootstrap()", **{handed_down.PLAN_VARIABLE: other.for_processes.model_dump_json()})
    changed = start(
        """
        from quirks_core.apply.process import report_configuration
        bootstrap()
        report_configuration({"engine.seed": 3})
        """
    )
    for child in (astray, changed):
        child.communicate(timeout=HUNG_S)
    values = [ReadBack(slot="engine.seed", planned=1, engine=1, binding=True)]

    with pytest.raises(ReceiptError) as error:
        collect(applied.folder, applied.plan.digest, {astray.pid: "worker 0", changed.pid: "worker 1"}, values)

    assert f"carries out plan {other.digest[:12]}… instead of {applied.plan.digest[:12]}…" in str(error.value)
    assert f"engine.seed: the plan wanted 1, MainProcess (process {changed.pid}) has 3" in str(error.value)


def test_a_plugin_that_fails_or_has_another_version_in_one_process_only_stops_that_process(applied, start, site, tmp_path):
    info = tmp_path / "newer" / "fake_dist-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-dist\nVersion: 9.9\n", encoding="utf-8")
    points = (site / "fake_dist-1.2.dist-info" / "entry_points.txt").read_text(encoding="utf-8")
    (info / "entry_points.txt").write_text(points, encoding="utf-8")

    sound, sick = start("bootstrap()"), start("bootstrap()", FAKE_FAILS_HERE="1")
    newer = start("bootstrap()", PYTHONPATH=f"{info.parent}:{site}")

    errors = [process.communicate(timeout=HUNG_S)[1] for process in (sound, sick, newer)]
    assert [process.returncode for process in (sound, sick, newer)] == [0, 1, 1]
    assert "this process cannot load quirk fake-step" in errors[1]
    assert "no disk in this process" in errors[1]
    assert "cannot load quirk fake-step (fake-dist 1.2" in errors[2]
    with pytest.raises(ReceiptError, match=rf"worker 1 \(process {sick.pid}\) did not acknowledge"):
        collect(applied.folder, applied.plan.digest, {sound.pid: "worker 0", sick.pid: "worker 1"})
