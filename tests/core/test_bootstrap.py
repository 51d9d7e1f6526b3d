"""Inside each vLLM process: carries out the orders it finds, once, and acknowledges with the same digest."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quirks_core import Applied, Plan, QuirksError, Registry, RunContext, Switches, Wishes, bootstrap, discover
from quirks_core.apply import apply
from quirks_core.receipt import read_acknowledgements

pytestmark = pytest.mark.usefixtures("own_environment")

ENGINE = 'class Engine:\n    def step(self):\n        return "step"\n\n    def stop(self):\n        return "stop"\n'
PLUGIN = """
from quirks_core import Default, Patch, Quirk, Severity, hookimpl, purpose, report
from quirks_core.fingerprints import fingerprint

def patch(name):
    target = f"fake_engine.module:Engine.{name}"
    return Patch(target, wrapper="fake_plugin:wrap", expects=fingerprint(target))

def wrap(original):
    return lambda self: f"patched {original(self)}"

@hookimpl
def quirks_declare():
    common = {
        "title": "Something goes wrong",
        "flag": "runtime",
        "match": purpose("rollout"),
        "severity": Severity.CRASH,
        "references": report("https://example.org/1"),
    }
    return [
        Quirk(id="fake-step", adjustments=(patch("step"), Default("env.VLLM_USE_V1", "1")), **common),
        Quirk(id="fake-stop", adjustments=patch("stop"), **common),
    ]
"""


@pytest.fixture
def make_orders(
    fake_distribution: Callable[..., None], make_context: Callable[..., RunContext], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Plan]:
    """Plans for an installed fake engine with an installed plugin that patches it."""
    monkeypatch.delenv("VLLM_USE_V1", raising=False)
    fake_distribution(
        "fake-dist",
        entry_points={"fake-plugin": "fake_plugin"},
        modules={"fake_engine/__init__.py": "", "fake_engine/module.py": ENGINE, "fake_plugin.py": PLUGIN},
    )

    def make(*disable: str) -> Plan:
        registry = Registry.load(item for item in discover() if item.distribution == "fake-dist")
        context = make_context(packages={"fake-engine": "1.0"})
        return registry.resolve(context, Switches.gather(command_line=Wishes(disable), environ={}))

    return make


def step_and_stop() -> tuple[str, str]:
    """What the engine does now."""
    engine: Any = importlib.import_module("fake_engine.module").Engine()
    return engine.step(), engine.stop()


def test_without_orders_nothing_happens() -> None:
    before = dict(os.environ)

    bootstrap.bootstrap()

    assert dict(os.environ) == before


def test_orders_without_a_folder_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bootstrap.ORDERS_VARIABLE, "not even JSON")

    bootstrap.bootstrap()


def test_patches_are_installed_and_variables_set(make_orders: Callable[..., Plan]) -> None:
    apply(make_orders())
    os.environ.pop("VLLM_USE_V1")  # not by monkeypatch: it would put it back after the test

    bootstrap.bootstrap()

    assert (step_and_stop(), os.environ["VLLM_USE_V1"]) == (("patched step", "patched stop"), "1")


def test_the_acknowledgement_carries_process_digest_and_effects(make_orders: Callable[..., Plan]) -> None:
    plan = make_orders()
    applied = apply(plan)

    bootstrap.bootstrap()

    (acknowledgement,) = read_acknowledgements(applied.folder)
    assert (acknowledgement.pid, acknowledgement.process, acknowledgement.digest) == (os.getpid(), "MainProcess", plan.digest)
    assert [(effect.slot, effect.after) for effect in acknowledgement.effects] == [
        ("env.VLLM_USE_V1", "1"),
        ("patch.fake_engine.module:Engine.step", "fake_plugin:wrap"),
        ("patch.fake_engine.module:Engine.stop", "fake_plugin:wrap"),
    ]


def test_a_second_call_changes_nothing(make_orders: Callable[..., Plan]) -> None:
    applied = apply(make_orders())
    bootstrap.bootstrap()
    step_and_stop()  # imports the engine, so that its patches come into force and are acknowledged
    (file,) = applied.folder.glob("ack-*.json")
    written = file.stat().st_mtime_ns

    bootstrap.bootstrap()

    assert (step_and_stop(), file.stat().st_mtime_ns) == (("patched step", "patched stop"), written)


@pytest.fixture
def hand_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Plan], Path]:
    """Hands a plan down to this process as its parent would, in a folder of its own."""

    def hand(plan: Plan) -> Path:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        monkeypatch.setenv(bootstrap.ORDERS_VARIABLE, plan.orders.model_dump_json())
        monkeypatch.setenv(bootstrap.FOLDER_VARIABLE, str(folder))
        return folder

    return hand


def test_another_plan_replaces_the_first_and_undoes_its_patches(
    make_orders: Callable[..., Plan], hand_down: Callable[[Plan], Path]
) -> None:
    first, second = make_orders(), make_orders("fake-step")
    hand_down(first)
    bootstrap.bootstrap()
    folder = hand_down(second)

    bootstrap.bootstrap()

    assert (step_and_stop(), bootstrap.in_force()) == (("step", "patched stop"), second.digest)
    assert [ack.digest for ack in read_acknowledgements(folder)] == [second.digest]


def test_a_plan_that_fails_half_way_leaves_no_patch_behind(
    make_orders: Callable[..., Plan], hand_down: Callable[[Plan], Path]
) -> None:
    plan = make_orders()
    step, stop = plan.patches
    broken = stop.model_copy(update={"quirk": stop.quirk.model_copy(update={"version": "9.9"})})
    folder = hand_down(plan.model_copy(update={"patches": (step, broken)}))

    with pytest.raises(QuirksError, match="cannot load quirk fake-stop"):
        bootstrap.bootstrap()

    assert (step_and_stop(), read_acknowledgements(folder)) == (("step", "stop"), ())


def test_the_same_plan_in_a_new_folder_is_acknowledged_there(
    make_orders: Callable[..., Plan], hand_down: Callable[[Plan], Path]
) -> None:
    plan = make_orders()
    hand_down(plan)
    bootstrap.bootstrap()
    folder = hand_down(plan)

    bootstrap.bootstrap()

    assert (len(read_acknowledgements(folder)), step_and_stop()) == (1, ("patched step", "patched stop"))


def test_while_a_plan_is_in_force_the_driver_cannot_apply_another(make_orders: Callable[..., Plan]) -> None:
    plan = make_orders()
    applied = apply(plan)
    bootstrap.bootstrap()
    before = dict(os.environ)

    with pytest.raises(QuirksError, match=f"plan {plan.digest[:12]}… is in force in this process"):
        apply(make_orders("fake-step"))

    assert dict(os.environ) == before
    applied.undo()
    apply(make_orders("fake-step")).undo()


def test_undoing_the_plan_takes_the_patches_off(make_orders: Callable[..., Plan]) -> None:
    applied = apply(make_orders())
    bootstrap.bootstrap()

    applied.undo()

    assert (step_and_stop(), bootstrap.ORDERS_VARIABLE in os.environ) == (("step", "stop"), False)


def test_a_forked_process_acknowledges_for_itself(make_orders: Callable[..., Plan]) -> None:
    applied = apply(make_orders())
    bootstrap.bootstrap()

    child = os.fork()
    if child == 0:  # no assertion, no fixture, no coverage of the parent may run here
        bootstrap.bootstrap()
        os._exit(0 if step_and_stop() == ("patched step", "patched stop") else 1)
    _, status = os.waitpid(child, 0)

    assert (status, {ack.pid for ack in read_acknowledgements(applied.folder)}) == (0, {os.getpid(), child})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"context": 3}', '{"context": "x", "colour": "red"}'])
def test_orders_that_cannot_be_read_are_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setenv(bootstrap.ORDERS_VARIABLE, text)
    monkeypatch.setenv(bootstrap.FOLDER_VARIABLE, str(tmp_path))

    with pytest.raises(QuirksError, match=f"handed down in {bootstrap.ORDERS_VARIABLE} cannot be read"):
        bootstrap.bootstrap()

    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def applied(make_orders: Callable[..., Plan]) -> Applied:
    """A plan in force, to be carried out in a process where something is different."""
    return apply(make_orders())


def change_orders(**changes: str) -> None:
    """Rewrites who asks for the first patch."""
    orders = json.loads(os.environ[bootstrap.ORDERS_VARIABLE])
    orders["patches"][0]["quirk"].update(changes)
    os.environ[bootstrap.ORDERS_VARIABLE] = json.dumps(orders)


@pytest.mark.parametrize("changes", [{"distribution": "other-dist"}, {"version": "9.9"}, {"id": "other-quirk"}])
def test_a_quirk_that_this_process_does_not_have_is_an_error_that_names_it(applied: Applied, changes: dict[str, str]) -> None:
    change_orders(**changes)

    with pytest.raises(QuirksError, match=f"this process cannot load quirk .*{next(iter(changes.values()))}"):
        bootstrap.bootstrap()

    assert read_acknowledgements(applied.folder) == ()


def test_a_plugin_that_is_broken_here_is_an_error_that_says_why(applied: Applied, site: Path) -> None:
    (site / "fake_plugin.py").write_text("raise OSError('no disk')\n", encoding="utf-8")
    importlib.invalidate_caches()
    del sys.modules["fake_plugin"]

    with pytest.raises(QuirksError, match=r"cannot load quirk fake-step .*no disk"):
        bootstrap.bootstrap()

    assert read_acknowledgements(applied.folder) == ()


def test_what_vllm_logs_as_an_error_is_kept_for_the_driver(make_orders: Callable[..., Plan]) -> None:
    applied = apply(make_orders())
    bootstrap.bootstrap()

    logging.getLogger("vllm").error("the engine is on fire")
    logging.getLogger("vllm").warning("it is warm")

    text = (applied.folder / f"errors-{os.getpid()}.log").read_text(encoding="utf-8")
    assert text == "MainProcess: the engine is on fire\n"


def test_after_undo_nothing_more_is_kept(make_orders: Callable[..., Plan]) -> None:
    before = list(logging.getLogger("vllm").handlers)
    applied = apply(make_orders())
    bootstrap.bootstrap()

    applied.undo()

    assert logging.getLogger("vllm").handlers == before
