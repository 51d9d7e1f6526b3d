"""Laws of the catalogue: every built-in quirk is declared, filed, documented and tested in the same way."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from pathlib import Path

import pytest

from quirks_core import ModelFlag, PairedRun, Quirk
from quirks_core.cli.showing import describe
from quirks_core.discovery import Discovered, discover
from quirks_core.flags import BUILT_IN
from quirks_core.loaded import Loaded
from quirks_core.resolve import resolve

ROOT = Path(__file__).parents[2]
PLUGINS = [item for item in discover() if item.distribution == BUILT_IN]

every_quirk = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)


def quirk_of(plugin: Discovered) -> Quirk:
    """Loads the quirk behind an entry point."""
    quirk = plugin.entry_point.load()
    assert isinstance(quirk, Quirk)
    return quirk


def loaded(plugin: Discovered) -> Loaded:
    """Loads the quirk with where it comes from."""
    return Loaded(quirk_of(plugin), plugin.distribution, plugin.version, plugin.name)


def test_every_quirk_of_the_folder_is_registered():
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in (ROOT / "quirks_plugins").rglob("*.py")
        if file.name != "__init__.py" and "QUIRK = Quirk(" in file.read_text(encoding="utf-8")
    }

    registered = {plugin.module for plugin in PLUGINS}

    assert files - registered == set()


@every_quirk
def test_entry_point_id_and_file_bear_one_name(plugin):
    file = plugin.module.rpartition(".")[2].replace("_", "-")

    assert quirk_of(plugin).id == plugin.name == file


@every_quirk
def test_the_folder_is_named_after_the_flag(plugin):
    folder = plugin.module.split(".")[-2]

    assert folder == quirk_of(plugin).flag == ModelFlag(folder)


@every_quirk
def test_it_has_a_test_file_of_its_own(plugin):
    file = Path(__file__).with_name(f"test_{plugin.name.replace('-', '_')}.py")

    assert file.is_file()


@every_quirk
def test_the_module_says_what_happens(plugin):
    quirk = quirk_of(plugin)

    text = importlib.import_module(plugin.module).__doc__

    assert text
    assert describe(loaded(plugin))["documentation"].startswith(text.splitlines()[0])
    assert quirk.title != text.splitlines()[0]


@every_quirk
def test_it_says_how_bad_it_is_where_to_read_on_and_since_when(plugin):
    quirk = quirk_of(plugin)

    assert quirk.severity.value
    assert quirk.since
    assert quirk.references
    assert all(reference.url.startswith("https://") for reference in quirk.references)


@every_quirk
def test_the_location_points_at_its_declaration(plugin):
    location = quirk_of(plugin).location

    line = (ROOT / location.file).read_text(encoding="utf-8").splitlines()[location.line - 1]

    assert line.startswith("QUIRK = Quirk(")


@every_quirk
def test_its_description_is_json(plugin):
    record = describe(loaded(plugin))

    assert json.loads(json.dumps(record)) == record
    assert record["id"] == plugin.name


@every_quirk
def test_the_paired_run_that_it_names_exists(plugin):
    runs = [evidence.scenario.partition(":") for evidence in quirk_of(plugin).evidence if isinstance(evidence, PairedRun)]

    functions = [getattr(importlib.import_module(module), name, None) for module, _, name in runs]

    assert all(map(inspect.iscoroutinefunction, functions))
    assert [len(inspect.signature(function).parameters) for function in functions] == [1] * len(functions)


@every_quirk
@pytest.mark.parametrize("model_type", ["gemma3", "gemma4", "apertus", "qwen3_moe"])
def test_matching_is_pure(plugin, model_type, context_for):
    values = {"recipe": "deepscaler", "engine": {"runtime": "v0"}, "train": {"context_parallel_size": 2}}
    context = context_for({"model_type": model_type, "num_experts": 8}, values, environ={"VLLM_USE_V1": "1"})
    item = loaded(plugin)
    before = (dict(os.environ), set(sys.modules), context.model_dump_json())

    first, second = resolve(context, [item]), resolve(context, [item])

    assert first.to_json() == second.to_json()
    assert (dict(os.environ), set(sys.modules), context.model_dump_json()) == before


def test_no_quirk_needs_an_engine_to_be_loaded(registry):
    assert registry.loaded
    assert registry.broken == ()
