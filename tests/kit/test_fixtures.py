"""The fixtures that authors of quirks get: contexts from keywords, a registry without discovery, and quirks put into force."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from quirks_core import Default, Patch, Quirk, Refuse, Require, Severity, model_type, report
from quirks_core.apply import process
from quirks_core.base.errors import DeclarationError, PatchDriftError, QuirksError, UsageError
from quirks_core.declaration.trace import Answer
from quirks_core.plan.records import RefusedError
from quirks_core.source.vllm_source import INSTALLED

pytestmark = pytest.mark.usefixtures("shell")
BUILT_IN = "quirks_plugins.weight_sync.gemma4_layer_scalar"


def make(quirk_id: str = "kit-one", **overrides: Any) -> Quirk:
    """A quirk of example models."""
    declaration: dict[str, Any] = {
        "id": quirk_id,
        "title": "Example models go wrong",
        "flag": "enforce_eager",
        "match": model_type("example"),
        "adjustments": Default("engine.enforce_eager", True),
        "severity": Severity.SLOW,
        "references": report("https://example.org/1"),
    }
    return Quirk(**{**declaration, **overrides})


def test_a_context_has_what_the_test_gives_alone(quirk_context, monkeypatch):
    """As an example has: `tests/core/test_quirk.py`."""
    monkeypatch.setenv("VLLM_USE_V1", "0")

    context = quirk_context("example", {"engine.load_format": "dummy"})

    assert (context.model.model_type, context.typed, context.environment) == ("example", {"engine.load_format"}, {})
    with pytest.raises(QuirksError, match=r"did you mean 'refit\.scope'"):
        quirk_context(settings={"refit.scop": "parameters"})


def test_a_registry_holds_only_what_the_test_adds(quirk_registry, quirk_context):
    with pytest.raises(UsageError, match="this registry is empty"):  # a test could pass by accident
        quirk_registry.resolve(quirk_context())

    plan = quirk_registry.add(make()).resolve(quirk_context("example"))

    assert [verdict.id for verdict in plan.verdicts] == ["kit-one"]
    assert plan.value("engine.enforce_eager") is True
    with pytest.raises(UsageError, match=r"no quirk 'gemma4-layer-scalar'; add what the test needs: quirk_registry\.add"):
        quirk_registry.find("gemma4-layer-scalar")

    quirk_registry.load(f"{BUILT_IN}:QUIRK")  # as an entry point would
    assert [item.quirk.id for item in quirk_registry.loaded] == ["gemma4-layer-scalar", "kit-one"]
    with pytest.raises(DeclarationError, match="has no attribute 'QUIRKS'"):  # not a row beside the others
        quirk_registry.load(f"{BUILT_IN}:QUIRKS")


def test_only_the_switches_of_the_test_count(quirk_registry, quirk_context, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "all")
    context = quirk_context("example")

    on = quirk_registry.add(make()).resolve(context)
    off = quirk_registry.resolve(context, disable=["kit-one"])

    assert (on.changes, off.changes) == ({"engine.enforce_eager": True}, {})


@pytest.fixture
def engine(install) -> Callable[..., Quirk]:
    """Installs a fake engine, and returns a quirk that wraps its method and sets a variable."""
    install(
        "kit-engine",
        {},
        kit_engine="class Engine:\n    def run(self):\n        return 'original'\n",
        kit_patch="def wrap(original):\n    return lambda self: 'wrapped'\n",
    )

    def quirk(**overrides: Any) -> Quirk:
        target = "kit_engine:Engine.run"
        patch = Patch(target, wrapper="kit_patch:wrap", expects=INSTALLED.fingerprint(target), reason="a test")
        return make(**{"adjustments": (patch, Require("env.NCCL_NVLS_ENABLE", "0")), **overrides})

    return quirk


def finders():
    """The import hooks but our own, which stays for later imports, and vLLM's, which come with its import."""
    return [one for one in sys.meta_path if not type(one).__module__.startswith(("quirks_core.apply.imports", "vllm."))]


@pytest.fixture
def unchanged():
    """Whatever the test does, the process is as before."""
    before = dict(os.environ), finders()
    yield
    assert (dict(os.environ), finders()) == before
    assert process.acknowledgement().digest == ""


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("error", [None, ZeroDivisionError], ids=["passes", "fails"])
def test_a_quirk_is_in_force_only_inside_the_block(applied, engine, quirk_context, error):
    with pytest.raises(error) if error else nullcontext(), applied(engine(), quirk_context("example")) as in_force:
        assert importlib.import_module("kit_engine").Engine().run() == "wrapped"
        assert os.environ["NCCL_NVLS_ENABLE"] == "0"
        assert in_force.plan.changes == {"env.NCCL_NVLS_ENABLE": "0"}
        if error:
            raise error

    assert importlib.import_module("kit_engine").Engine().run() == "original"


def test_an_installed_quirk_goes_the_way_of_every_engine_process(applied):
    from quirks_plugins.moe_backend.cpu_moe_expert_parallel import QUIRK

    example = QUIRK.examples[0]
    assert example.answer is Answer.YES

    with applied(QUIRK, example.context()) as in_force:
        acknowledged = process.acknowledgement()

    assert acknowledged.digest == in_force.plan.digest
    assert len([effect for effect in acknowledged.effects if effect.slot.startswith("patch.")]) == 3


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("overrides", "model", "error", "words"),
    [
        ({}, "other", UsageError, r"kit-one is not_matched in this run.*wanted example, got other"),
        ({"adjustments": Refuse("it cannot work", "do something else")}, "example", RefusedError, "it cannot work"),
        (
            {"adjustments": Patch("kit_engine:Engine.run", wrapper="kit_patch:wrap", expects="0" * 12)},
            "example",
            PatchDriftError,
            "kit_engine:Engine.run",
        ),
    ],
    ids=["not active, so that a test could pass by accident", "refused", "drifted"],
)
def test_a_quirk_that_cannot_be_put_into_force_is_an_error(applied, engine, quirk_context, overrides, model, error, words):
    with pytest.raises(error, match=words):
        applied(engine(**overrides), quirk_context(model)).__enter__()


def test_the_plugins_of_pytest_import_nothing_but_themselves(python):
    code = (
        "import pytest, sys; before = set(sys.modules);"
        "import quirks_core.testing.plugin, quirks_plugins.fixtures;"
        "new = set(sys.modules) - before; print(*sorted(n for n in new if n.startswith(('quirks_', 'worker'))));"
        "print(*{'pydantic', 'torch', 'vllm', 'ray', 'transformers'} & new)"
    )

    ours, heavy = python("-c", code).stdout.splitlines()

    plugins = ["quirks_core", "quirks_core.testing", "quirks_core.testing.plugin"]
    assert ours.split() == [*plugins, "quirks_plugins", "quirks_plugins.fixtures"]
    assert heavy == ""
