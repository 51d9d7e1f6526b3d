"""Short sequences of a LongRoPE model, in an engine that is longer than the trained length (longrope-short-sequences)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.asyncio


async def test_a_longrope_engine_beyond_the_trained_length_differs(lab):
    from quirks_plugins.model_config.evidence import edited, sampled

    factors = {"short_factor": [1.0] * 16, "long_factor": [1.0 + step for step in range(16)]}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors}
    # No sequence is longer than 64 tokens.
    model = edited(lab, "phi3", "longrope", {"original_max_position_embeddings": 64, "rope_parameters": rope})

    got = await sampled(lab, model, {"max_model_len": 256})

    assert not lab.close_logprobs(got, lab.rescored(lab.trainer(model), got)).passed
    assert "longrope-short-sequences" in {row.id for row in lab.plans[-1].active}
