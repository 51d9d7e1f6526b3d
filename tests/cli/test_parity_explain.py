"""``quirks parity explain``: what a trainer's defaults make of the configuration."""

from __future__ import annotations

import pytest

from quirks_core.configuration.config import GenerationConfig
from worker.lab.cli.parity import with_trainer


@pytest.mark.parametrize(
    ("trainer", "typed", "filled"),
    [
        ("trl", {}, {"dtype": "float32", "autocast": "bfloat16", "head_dtype": "model"}),
        ("trl", {"autocast": None, "dtype": "bfloat16"}, {"dtype": "bfloat16", "autocast": "none", "head_dtype": "model"}),
        (None, {}, {}),
    ],
)
def test_a_trainers_defaults_fill_what_is_open(trainer, typed, filled) -> None:
    """A typed null means no autocast."""
    config = GenerationConfig.parse({"model": "m", "train": typed})

    found = with_trainer(config, trainer)

    assert {name: getattr(found.train, name) for name in filled} == filled
    assert (found == config) == (not filled)
