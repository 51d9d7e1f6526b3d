"""The fixtures that authors of quirks get: contexts from keywords, a registry without discovery, and quirks put into force."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from quirks_core import (
    Answer,
    DeclarationError,
    Default,
    Patch,
    PatchDriftError,
    Quirk,
    QuirksError,
    Refuse,
    RefusedError,
    Require,
    Severity,
    UsageError,
    bootstrap,
    hookimpl,
    model_type,
    report,
)
from quirks_core.fingerprints import fingerprint

EXAMPLE = {"model_type": "example"}


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


def test_settings_count_as_typed(quirk_context):
    context = quirk_context(config=EXAMPLE, settings={"engine.load_format": "dummy"}, purpose="eval")

    assert context.model.model_type == "example"
    assert context.fact("engine.load_format") == "dummy"
    assert context.typed == {"engine.load_format"}
    assert context.purpose == "eval"


def test_settings_may_be_the_configurations_defaults(quirk_context):
    context = quirk_context(settings={"engine.load_format": "dummy"}, typed=())

    assert context.fact("engine.load_format") == "dummy"
    assert context.fact("typed.engine.load_format") is False


def test_nothing_that_is_installed_leaks_in(quirk_context, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V1", "0")

    context = quirk_context()

    assert context.packages == {}
    assert context.platform is None
    assert context.environment == {}


def test_versions_are_assumed_so_that_no_installed_source_is_looked_at(quirk_context):
    context = quirk_context(packages={"vllm": "0.9.1"})

    assert context.fact("packages.vllm") == "0.9.1"
    assert context.source_known("vllm") is False


@pytest.mark.parametrize(
    "keywords", [{"settings": {"engine.lod_format": "auto"}}, {"typed": ["engine.lod_format"]}], ids=["settings", "typed"]
)
def test_a_slot_that_does_not_exist_is_an_error_with_the_nearest_name(quirk_context, keywords):
    with pytest.raises(QuirksError, match=r"did you mean 'engine\.load_format'"):
        quirk_context(**keywords)


def test_it_holds_what_the_test_adds_and_nothing_that_is_installed(quirk_registry, quirk_context):
    plan = quirk_registry.add(make()).resolve(quirk_context(config=EXAMPLE))

    assert [verdict.id for verdict in plan.verdicts] == ["kit-one"]
    assert plan.value("engine.enforce_eager") is True


def test_discovery_is_refused_with_what_to_do(quirk_registry):
    with pytest.raises(UsageError, match=r"quirk_registry\.add\(QUIRK\), or quirk_registry\.load"):
        quirk_registry.discover()


def test_an_installed_quirk_is_not_found_and_the_error_says_how_to_add_it(quirk_registry):
    with pytest.raises(UsageError, match=r"no quirk 'gemma4-layer-scalar'; add what the test needs: quirk_registry\.add"):
        quirk_registry.find("gemma4-layer-scalar")


def test_an_empty_registry_makes_no_plan_because_a_test_could_pass_by_accident(quirk_registry, quirk_context):
    with pytest.raises(UsageError, match="this registry is empty"):
        quirk_registry.resolve(quirk_context())


def test_an_entry_points_value_is_loaded_like_an_installed_one(quirk_registry):
    quirk_registry.load("quirks_plugins.weight_sync.gemma4_layer_scalar:QUIRK")

    assert [item.quirk.id for item in quirk_registry.loaded] == ["gemma4-layer-scalar"]


@pytest.mark.parametrize(
    ("value", "name", "words"),
    [
        ("no_such_module:QUIRK", "", "No module named 'no_such_module'"),
        ("quirks_plugins.weight_sync.gemma4_layer_scalar:QUIRKS", "", "has no attribute 'QUIRKS'"),
        ("json:dumps", "", "neither a Quirk nor a plugin"),
        ("quirks_plugins.weight_sync.gemma4_layer_scalar:QUIRK", "other", "the entry point is named 'other'"),
    ],
)
def test_a_broken_plugin_is_an_error(quirk_registry, value, name, words):
    with pytest.raises(DeclarationError, match=words):
        quirk_registry.load(value, name=name)

    assert quirk_registry.loaded == ()


def test_an_id_that_is_taken_is_an_error(quirk_registry):
    quirk_registry.add(make())

    with pytest.raises(DeclarationError, match="'kit-one' was added already"):
        quirk_registry.add(make(title="Another one"))

    assert len(quirk_registry.loaded) == 1


def test_an_id_of_another_distribution_is_taken(quirk_registry):
    quirk_registry.add(make())

    with pytest.raises(DeclarationError, match="quirk id 'kit-one' is taken by tests 0"):
        quirk_registry.add(make(), distribution="others")


def test_plugins_with_hooks_give_quirks_and_facts(quirk_registry, quirk_context):
    from quirks_core import Fact

    class Plugin:
        @hookimpl
        def quirks_declare(self):
            return [make(match=Fact("acme.network").one_of("slow"))]

        @hookimpl
        def quirks_facts(self):
            return {"network": "slow"}

    plan = quirk_registry.add(Plugin(), distribution="acme").resolve(quirk_context())

    assert plan.value("engine.enforce_eager") is True


def test_switches_can_be_tried(quirk_registry, quirk_context, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "all")
    context = quirk_context(config=EXAMPLE)

    on = quirk_registry.add(make()).resolve(context)
    off = quirk_registry.resolve(context, disable=["kit-one"])

    assert on.changes == {"engine.enforce_eager": True}
    assert off.changes == {}


ENGINE = "class Engine:\n    def run(self):\n        return 'original'\n"


@pytest.fixture
def engine(install) -> Callable[..., Quirk]:
    """Installs a fake engine, and returns a quirk that wraps its method and sets a variable."""
    install("kit-engine", {}, kit_engine=ENGINE, kit_patch="def wrap(original):\n    return lambda self: 'wrapped'\n")

    def quirk(**overrides: Any) -> Quirk:
        patch = Patch(
            "kit_engine:Engine.run", wrapper="kit_patch:wrap", expects=(fingerprint("kit_engine:Engine.run"),), reason="a test"
        )
        adjustments = (patch, Require("env.VLLM_USE_V1", "0"))
        return make(**{"adjustments": adjustments, **overrides})

    return quirk


@pytest.mark.parametrize("imported", ["before", "inside"])
def test_patches_and_environment_are_in_force_inside_and_gone_afterwards(applied, engine, quirk_context, imported):
    before = dict(os.environ), list(sys.meta_path)
    if imported == "before":
        importlib.import_module("kit_engine")

    with applied(engine(), quirk_context(config=EXAMPLE)) as in_force:
        inside = importlib.import_module("kit_engine").Engine().run()
        variable = os.environ["VLLM_USE_V1"]

    assert (inside, variable) == ("wrapped", "0")
    assert in_force.plan.changes == {"env.VLLM_USE_V1": "0"}
    assert importlib.import_module("kit_engine").Engine().run() == "original"
    assert (dict(os.environ), list(sys.meta_path)) == before
    assert bootstrap.in_force() is None


def test_everything_is_undone_when_the_body_fails(applied, engine, quirk_context):
    def fail() -> None:
        with applied(engine(), quirk_context(config=EXAMPLE)):
            assert importlib.import_module("kit_engine").Engine().run() == "wrapped"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert importlib.import_module("kit_engine").Engine().run() == "original"
    assert "VLLM_USE_V1" not in os.environ


def test_an_installed_quirk_goes_the_way_of_every_engine_process(applied):
    from quirks_plugins.moe_backend.cpu_moe_expert_parallel import QUIRK

    context = QUIRK.examples[0].context()
    assert QUIRK.examples[0].answer is Answer.YES

    with applied(QUIRK, context) as in_force:
        acknowledged = [json.loads(file.read_text()) for file in in_force.folder.glob("ack-*.json")]

    assert [ack["pid"] for ack in acknowledged] == [os.getpid()]
    assert len([effect for effect in acknowledged[0]["effects"] if effect["slot"].startswith("patch.")]) == 2


def test_a_quirk_that_is_not_active_is_an_error_because_a_test_could_pass_by_accident(applied, quirk_context):
    with pytest.raises(UsageError, match=r"kit-one is not_matched in this run.*wanted example, got other"):
        applied(make(), quirk_context(config={"model_type": "other"})).__enter__()


def test_a_run_that_is_refused_is_refused(applied, quirk_context):
    quirk = make(adjustments=Refuse("it cannot work", "do something else"))

    with pytest.raises(RefusedError, match="it cannot work"):
        applied(quirk, quirk_context(config=EXAMPLE)).__enter__()


def test_a_patch_whose_target_has_changed_is_refused_and_nothing_stays(applied, engine, quirk_context):
    patch = Patch("kit_engine:Engine.run", wrapper="kit_patch:wrap", expects=("0" * 64,), reason="a test")
    before = dict(os.environ)

    with pytest.raises(PatchDriftError):
        applied(engine(adjustments=patch), quirk_context(config=EXAMPLE)).__enter__()

    assert dict(os.environ) == before
    assert bootstrap.in_force() is None


def test_a_tiny_checkpoint_is_built_once_per_kind_and_seed(tiny_checkpoint):
    first, second, other = tiny_checkpoint("qwen3"), tiny_checkpoint("qwen3"), tiny_checkpoint("qwen3", seed=1)

    assert first == second != other
    assert json.loads((first / "config.json").read_text())["model_type"] == "qwen3"
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_loading_the_plugin_imports_nothing_of_the_project_but_itself():
    heavy = "{'pydantic', 'torch', 'vllm', 'ray', 'transformers', 'worker', 'quirks_plugins'}"
    code = (
        "import pytest, sys; before = set(sys.modules);"
        "import quirks_core.testing.plugin, quirks_core.testing.marker;"
        f"new = set(sys.modules) - before; print(sorted(n for n in new if n.startswith('quirks_core') or n in {heavy}))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(
        ["quirks_core", "quirks_core.testing", "quirks_core.testing.marker", "quirks_core.testing.plugin"]
    )
