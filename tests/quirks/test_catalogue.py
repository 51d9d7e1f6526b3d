"""Laws of the catalogue: every built-in quirk is filed and tested in the same way, and can be switched off."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from quirks_core import ModelFlag
from quirks_core.declaration import data_file
from quirks_core.declaration.adjustments import Advise, Default, Patch, Refuse, Require
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.declaration.match import All, Not
from quirks_core.declaration.trace import Answer
from quirks_core.plan.resolve import resolve
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry
from quirks_core.testing.applied import entry_point_value
from quirks_plugins.environment.rust_frontend import IN_THE_FRONT_END

ROOT = Path(__file__).parents[2]
LOADED = Registry.load([item for item in discover() if item.distribution == BUILT_IN], strict=True).loaded
every_quirk = pytest.mark.parametrize("item", LOADED, ids=lambda item: item.quirk.id)


def test_every_quirk_of_the_folder_is_registered():
    declared = {
        f"{'.'.join(file.relative_to(ROOT).with_suffix('').parts)}:{name}"
        for file in (ROOT / "quirks_plugins").rglob("*.py")
        for name in re.findall(r"^(\w+) = Quirk\($", file.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert declared == {entry_point_value(item.quirk) for item in LOADED}


@every_quirk
def test_a_quirk_is_the_file_or_row_of_its_id_in_its_folder(item):
    module, _, row = entry_point_value(item.quirk).partition(":")
    _, folder, file = module.split(".")

    assert item.quirk.id == item.entry_point == (file if row == "QUIRK" else row.lower()).replace("_", "-")
    assert item.quirk.flag == folder == ModelFlag(folder)


@every_quirk
def test_its_examples_show_every_outcome_that_it_can_have(item):
    """A patch without a condition is in force wherever the quirk is, which a yes says already."""
    quirk, examples = item.quirk, item.quirk.examples
    kinds = {type(part) for part in quirk.adjustments if not isinstance(part, Patch) or part.when is not None}

    assert any(example.gives or example.refuses for example in examples) or not kinds & {Default, Require}
    assert any(example.refuses for example in examples) or Refuse not in kinds
    assert any(example.advises for example in examples) or Advise not in kinds
    patches = [part for part in quirk.adjustments if isinstance(part, Patch) and not _acts_if_forced_alone(quirk, part)]
    assert any(example.patches for example in examples) or Patch not in kinds or not patches


def _acts_if_forced_alone(quirk, patch):
    """Its condition is the contrary of a part of the match, so that no run it concerns has it; no example forces."""
    parts = quirk.match.parts if isinstance(quirk.match, All) else (quirk.match,)
    return isinstance(patch.when, Not) and patch.when.part in parts


def test_rust_frontend_names_the_quirks_that_do_nothing_there():
    done_there = (
        *("vllm.entrypoints.", "vllm.renderers.", "vllm.sampling_params:", "vllm.v1.engine.input_processor:"),
        "vllm.config.model:ModelConfig.try_get_generation_config",
    )

    ours = [
        item.quirk.id
        for item in LOADED
        if any(isinstance(part, Patch) and part.target.startswith(done_there) for part in item.quirk.adjustments)
    ]

    assert list(IN_THE_FRONT_END) == sorted(ours)


@every_quirk
def test_the_paired_runs_that_it_names_exist(item):
    runs = [run.scenario.partition(":") for run in item.quirk.paired_runs]

    functions = [getattr(importlib.import_module(module), name, None) for module, _, name in runs]

    assert all(map(inspect.iscoroutinefunction, functions))
    assert [list(inspect.signature(function).parameters) for function in functions] == [["lab"]] * len(functions)


@every_quirk
def test_a_refusal_names_its_switch_with_a_remedy(item):
    for example in item.quirk.examples:
        if example.answer is not Answer.YES:
            continue
        for refusal in resolve(example.context(), [item]).refusals:
            assert refusal.switch.startswith(f"--disable {item.quirk.id} ")
            assert re.search(r"(engine|parallel|cluster|train|refit|request)\.\w+|it to '|[A-Z]+_[A-Z_]+", refusal.remedy)


def test_the_data_file_is_up_to_date():
    """A quirk that it does not name is new in this release, so that adding one needs no record."""
    known = data_file.read_for(LOADED[0].quirk)

    now = data_file.updated(known, tuple(item.quirk for item in LOADED), LOADED[0].version)
    assert now.model_copy(update={"since": known.since}) == known
    assert known.since.items() <= now.since.items()
