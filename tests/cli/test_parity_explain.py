"""``quirks parity explain``: what is refused before anything is loaded."""

from __future__ import annotations

import pytest
from installed import needs_vllm

from quirks_core.base.errors import UsageError
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


@needs_vllm
def test_an_unknown_dtype_of_the_trainer_is_an_error(tmp_path) -> None:
    from quirks_core.plugins.planning import PlanOptions
    from worker.lab.parity.explain import Explain

    config = GenerationConfig.parse({"model": str(tmp_path)})
    with pytest.raises(UsageError, match=r"how the trainer computes is unknown: set train.dtype .*or give --trainer"):
        Explain(config, PlanOptions.gather(config))
