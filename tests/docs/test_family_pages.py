"""The pages of models show what the planner answers for them."""

from __future__ import annotations

import re

import pytest
from declared import models
from family_pages import Planner, families

from quirks_core.plugins.registry import Registry

_QUIRKS = ("gemma4-layer-scalar", "lora-base-refit", "deepseek-routing-keys", "cohere2-sliding-window", "v2-request-limits")


@pytest.fixture(scope="module")
def planner() -> Planner:
    registry = Registry.load()
    return Planner([registry.find(name) for name in _QUIRKS])


@pytest.fixture
def cells(planner):
    """Returns the cells of a quirk's first row on the page of a model."""

    def cells(model, quirk, after=""):
        (family,) = [one for one in families(list(planner.loaded.values())) if model in one.types]
        text = planner.family_page(family).partition(after)[2]
        return next(line for line in text.splitlines() if line.startswith(f"| [{quirk}](")).strip("|").split(" | ")[1:]

    return cells


@pytest.mark.parametrize(
    ("model", "quirk", "where"),
    [
        ("gemma4_text", "gemma4-layer-scalar", ["", "●", "", ""]),
        ("qwen3_moe", "lora-base-refit", ["", "", "●", ""]),
        ("cohere2", "cohere2-sliding-window", ["●", "●", "●", ""]),
    ],
)
def test_a_quirk_of_the_model_is_marked_where_a_plan_has_it(cells, model, quirk, where):
    assert [cell.strip() for cell in cells(model, quirk, "## What applies")[:4]] == where


def test_a_quirk_that_these_runs_do_not_get_has_an_example(cells):
    run, done, proven = cells("deepseek_v3", "deepseek-routing-keys", "## In further runs")

    assert "`model.config.model_type = deepseek_v3`" in run
    assert "engine.hf_overrides" in done
    assert proven.startswith("cpu ")


def test_what_any_model_gets_is_no_matter_of_the_model(planner):
    (llama,) = [one for one in families(list(planner.loaded.values())) if one.name == "llama"]
    text = planner.family_page(llama)

    assert "Nothing that other models do not get as well." in text
    assert "As for any model: [v2-request-limits](" in text


def test_the_table_of_versions_counts_the_cures_of_a_model(planner):
    lines = planner.versions_page(families(list(planner.loaded.values()))).splitlines()
    counts = {
        name: line.strip("| ").split(" | ")[:4]
        for line in lines
        for name in ("gemma4", "llama", "cohere2")
        if f"`{name}`" in line
    }

    assert counts == {"gemma4": ["1"] * 4, "llama": ["0"] * 4, "cohere2": ["0", "1", "1", "1"]}


def test_no_page_names_models_by_a_regular_expression():
    named = {name for item in Registry.load().loaded for name in models(item.quirk)}

    assert "any if its name is that of a GGUF file" in named
    assert [name for name in named if re.search(r"[\\$^*+?|]", name)] == []
