"""The trainer of ``quirks parity --trainer trl`` computes what TRL computes: its own functions, on the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quirks_core.facts.trainers import numerics
from worker.lab.kit.lab import PROMPTS, Lab
from worker.lab.parity.records import Sample, Scoring
from worker.lab.parity.trainer import Trainer, TrainerOptions

trl = pytest.importorskip("trl")
#: Nats: far below the rounding of bfloat16 (0.01), above what another shape of the same product changes in float32.
NOISE = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("checkpoints")).checkpoint("qwen3")


@pytest.fixture
def options() -> TrainerOptions:
    values = numerics("trl")
    return TrainerOptions(dtype=values["train.dtype"], autocast=values["train.autocast"], head_dtype=values["train.head_dtype"])


def logprobs_of_trl(model, sample: Sample, *, cast: bool) -> torch.Tensor:
    """What GRPO compares with vLLM's: GRPOTrainer._get_per_token_logps_and_entropies without its batches."""
    from trl.trainer.utils import add_fused_lm_head, create_model_from_path

    module = create_model_from_path(str(model), device_map=None).eval()
    add_fused_lm_head(module, temperature=sample.scoring.temperature, cast_lm_head_to_fp32=cast)
    ids = torch.tensor([[*sample.prompt, *sample.tokens]])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # accelerate's, with GRPOConfig's bf16
        out = module(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True)
    return out.log_probs[0, -len(sample.tokens) :]


@pytest.mark.parametrize("cast", [False, True])
def test_logprobs_under_autocast_are_trls(model, options: TrainerOptions, cast: bool) -> None:
    tokens = tuple((31 * position + 3) % 500 for position in range(24))
    sample = Sample(prompt=PROMPTS[0], tokens=tokens, rollout=(0.0,) * 24, scoring=Scoring(temperature=0.7))
    options = replace(options, head_dtype="float32") if cast else options

    (found,) = Trainer.load(str(model), options).score([sample])

    assert found.trainer == pytest.approx(logprobs_of_trl(model, sample, cast=cast).tolist(), abs=NOISE)


def test_trls_configuration_computes_under_autocast_by_default(tmp_path) -> None:
    from trl import GRPOConfig

    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True)

    assert config.bf16 is True
    assert config.cast_lm_head_to_fp32 is False
