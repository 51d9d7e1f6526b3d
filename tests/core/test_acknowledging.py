"""Acknowledging: pending patches, late processes, another plan, a plugin that fails in one process only."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quirks_core import Applied, Plan, ReceiptError, Registry, RunContext, Switches, bootstrap
from quirks_core.apply import apply
from quirks_core.receipt import Effect, ReadBack, collect, read_acknowledgements

pytestmark = pytest.mark.usefixtures("own_environment")

ENGINE = 'class Engine:\n    def step(self):\n        return "step"\n'
PLUGIN = """
import os
from quirks_core.fingerprints import fingerprint

if os.environ.get("FAKE_FAILS_HERE"):
    raise OSError("no disk in this process")

def wrap(original):
    return lambda self: f"patched {original(self)}"

def wrap_other(original):
    return lambda self: f"other {original(self)}"

TARGET = "fake_engine.module:Engine.step"

@hookimpl
def quirks_declare():
    old, now = model_type("gemma3"), model_type("qwen3")
    patches = (
        Patch(TARGET, wrapper="fake_plugin:wrap_other", expects=fingerprint(TARGET), when=old),
        Patch(TARGET, wrapper="fake_plugin:wrap", expects=fingerprint(TARGET), when=now),
        Default("env.VLLM_USE_V1", "1"),
    )
    return [make("fake-step", adjustments=patches)]
"""
SLOT = "patch.fake_engine.module:Engine.step"


@pytest.fixture
def plan(
    write_modules: Callable[..., None],
    load_fakes: Callable[..., Registry],
    make_context: Callable[..., RunContext],
    monkeypatch: pytest.MonkeyPatch,
) -> Plan:
    """A plan for an installed fake engine, with an installed plugin that patches it."""
    monkeypatch.delenv("VLLM_USE_V1", raising=False)
    write_modules({"fake_engine/__init__.py": "", "fake_engine/module.py": ENGINE})
    registry = load_fakes(fake_plugin=PLUGIN)
    made = registry.resolve(make_context(packages={"fake-engine": "1.0"}), Switches())
    assert (len(made.patches), made.refusals, registry.broken) == (1, (), ())
    return made


@pytest.fixture
def applied(plan: Plan) -> Iterator[Applied]:
    """The plan in force."""
    in_force = apply(plan)
    yield in_force
    in_force.undo()


@pytest.fixture
def start(site: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process of the engine, which bootstraps itself, and ends it after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(body: str, **environment: str) -> subprocess.Popen[str]:
        text = "import time\nfrom quirks_core.bootstrap import bootstrap\n" + textwrap.dedent(body)
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", text],
                env={**os.environ, "PYTHONPATH": str(site), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def effect(applied: Applied) -> Effect:
    """What this process acknowledges about its patch."""
    (acknowledgement,) = read_acknowledgements(applied.folder)
    return next(item for item in acknowledgement.effects if item.slot == SLOT)


def test_a_patch_that_waits_for_its_module_is_acknowledged_as_pending(applied: Applied) -> None:
    bootstrap.bootstrap()

    assert (effect(applied).pending, effect(applied).after) == (True, "fake_plugin:wrap")


def test_a_patch_that_has_come_into_force_is_acknowledged_once_more(applied: Applied) -> None:
    bootstrap.bootstrap()

    engine: Any = importlib.import_module("fake_engine.module").Engine()

    assert (engine.step(), effect(applied).pending) == ("patched step", False)


def test_of_two_patches_of_one_target_the_planned_one_is_installed(applied: Applied) -> None:
    bootstrap.bootstrap()

    engine: Any = importlib.import_module("fake_engine.module").Engine()

    assert engine.step() == "patched step"
    assert effect(applied).after == "fake_plugin:wrap"


def test_after_undo_a_module_that_is_imported_is_neither_patched_nor_acknowledged(applied: Applied) -> None:
    bootstrap.bootstrap()
    bootstrap.undo()
    written = read_acknowledgements(applied.folder)

    engine: Any = importlib.import_module("fake_engine.module").Engine()

    assert (engine.step(), read_acknowledgements(applied.folder)) == ("step", written)


def test_a_process_reports_the_configuration_that_it_runs_with(applied: Applied) -> None:
    bootstrap.bootstrap()

    bootstrap.report_configuration({"engine.seed": 3})

    (acknowledgement,) = read_acknowledgements(applied.folder)
    assert (acknowledgement.engine, len(acknowledgement.effects)) == ({"engine.seed": 3}, 2)


def test_a_process_without_a_plan_reports_nothing(plan: Plan, tmp_path: Path) -> None:  # noqa: ARG001 - makes the plugin
    bootstrap.report_configuration({"engine.seed": 3})

    assert list(tmp_path.glob("ack-*.json")) == []
    bootstrap.undo()


def test_a_process_of_its_own_carries_out_the_same_plan(applied: Applied, start: Callable[..., Any]) -> None:
    process = start("bootstrap()\nfrom fake_engine.module import Engine\nprint(Engine().step())")

    out, err = process.communicate(timeout=60)

    assert (out, err, process.returncode) == ("patched step\n", "", 0)
    (acknowledgement,) = collect(applied.folder, applied.plan.digest, {process.pid: "worker"}).processes
    assert [(item.slot, item.pending) for item in acknowledgement.effects] == [("env.VLLM_USE_V1", False), (SLOT, False)]


def test_a_process_that_acknowledges_late_is_waited_for(applied: Applied, start: Callable[..., Any]) -> None:
    process = start("time.sleep(1)\nbootstrap()\ntime.sleep(60)")
    expected = {process.pid: "worker 0"}
    with pytest.raises(ReceiptError, match=rf"worker 0 \(process {process.pid}\) did not acknowledge the plan"):
        collect(applied.folder, applied.plan.digest, expected)

    receipt = collect(applied.folder, applied.plan.digest, expected, wait_s=60.0)

    assert [ack.pid for ack in receipt.processes] == [process.pid]


def test_processes_that_never_acknowledge_stop_the_run_with_the_list(applied: Applied, start: Callable[..., Any]) -> None:
    punctual, silent, other = start("bootstrap()\ntime.sleep(60)"), start("time.sleep(60)"), start("time.sleep(60)")
    collect(applied.folder, applied.plan.digest, {punctual.pid: "worker 0"}, wait_s=60.0)
    expected = {punctual.pid: "worker 0", silent.pid: "worker 1", other.pid: "worker 2"}

    with pytest.raises(ReceiptError) as error:
        collect(applied.folder, applied.plan.digest, expected, wait_s=0.2)

    message = str(error.value)
    assert f"worker 1 (process {silent.pid}) did not acknowledge the plan within 0.2 s" in message
    assert f"worker 2 (process {other.pid}) did not acknowledge the plan within 0.2 s" in message
    assert "worker 0" not in message


def test_a_process_that_carries_out_another_plan_stops_the_run(
    applied: Applied, make_plan: Callable[..., Plan], start: Callable[..., Any]
) -> None:
    other = make_plan()
    process = start("bootstrap()", MODEL_QUIRKS_ORDERS=other.orders.model_dump_json())
    process.communicate(timeout=60)

    with pytest.raises(ReceiptError) as error:
        collect(applied.folder, applied.plan.digest, {process.pid: "worker 0"})

    assert f"carries out plan {other.digest[:12]}… instead of {applied.plan.digest[:12]}…" in str(error.value)


def test_a_plugin_that_fails_in_one_process_only_stops_that_process_and_the_run_says_which(
    applied: Applied, start: Callable[..., Any]
) -> None:
    sound, sick = start("bootstrap()"), start("bootstrap()", FAKE_FAILS_HERE="1")
    sound.communicate(timeout=60)

    _, err = sick.communicate(timeout=60)

    assert (sound.returncode, sick.returncode) == (0, 1)
    assert "this process cannot load quirk fake-step" in err
    assert "no disk in this process" in err
    with pytest.raises(ReceiptError, match=rf"worker 1 \(process {sick.pid}\) did not acknowledge"):
        collect(applied.folder, applied.plan.digest, {sound.pid: "worker 0", sick.pid: "worker 1"})


def test_a_version_that_differs_in_one_process_only_stops_that_process(
    applied: Applied, start: Callable[..., Any], site: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "newer"
    info = newer / "fake_dist-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-dist\nVersion: 9.9\n", encoding="utf-8")
    points = (site / "fake_dist-1.2.dist-info" / "entry_points.txt").read_text(encoding="utf-8")
    (info / "entry_points.txt").write_text(points, encoding="utf-8")

    process = start("bootstrap()", PYTHONPATH=f"{newer}:{site}")
    _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "cannot load quirk fake-step (fake-dist 1.2" in err
    assert read_acknowledgements(applied.folder) == ()


def test_a_worker_whose_own_configuration_differs_stops_the_run(applied: Applied, start: Callable[..., Any]) -> None:
    process = start(
        """
        from quirks_core.bootstrap import report_configuration
        bootstrap()
        report_configuration({"engine.seed": 3, "engine.dtype": "x"})
        """
    )
    process.communicate(timeout=60)
    values = [
        ReadBack(slot="engine.seed", planned=1, engine=1, binding=True),
        ReadBack(slot="engine.dtype", planned="auto", engine="auto"),
    ]

    with pytest.raises(ReceiptError) as error:
        collect(applied.folder, applied.plan.digest, {process.pid: "worker 0"}, values)

    assert f"engine.seed: the plan wanted 1, MainProcess (process {process.pid}) has 3" in str(error.value)
    assert "engine.dtype" not in str(error.value)
