"""``quirks parity explain``: what is refused before anything is loaded."""

from __future__ import annotations

import pytest
from installed import needs_vllm

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from worker.lab.cli.parity import with_trainer


def test_a_trainers_defaults_fill_what_is_open() -> None:
    config = with_trainer(GenerationConfig.parse({"model": "m"}), "trl")

    assert (config.train.dtype, config.train.autocast, config.train.head_dtype) == ("float32", "bfloat16", "model")


def test_a_typed_null_means_no_autocast() -> None:
    config = with_trainer(GenerationConfig.parse({"model": "m", "train": {"autocast": None, "dtype": "bfloat16"}}), "trl")

    assert (config.train.dtype, config.train.autocast) == ("bfloat16", "none")


def test_without_a_trainer_nothing_is_filled() -> None:
    config = GenerationConfig.parse({"model": "m"})

    assert with_trainer(config, None) == config


@needs_vllm
def test_an_unknown_dtype_of_the_trainer_is_an_error(tmp_path) -> None:
    from quirks_core.plugins.planning import PlanOptions
    from worker.lab.parity.explain import Explain

    config = GenerationConfig.parse({"model": str(tmp_path)})
    with pytest.raises(UsageError, match=r"how the trainer computes is unknown: set train.dtype .*or give --trainer"):
        Explain(config, PlanOptions.gather(config))
