"""LongRoPE (Phi-3, Phi-4-mini): above the trained length vLLM rotates short sequences with other factors than the trainer.

What happens: a rollout with ``max_model_len: 8192`` samples every short answer from another model than the one that is
trained, and the logprobs of all tokens differ. In TensorRT-LLM's tests the long factors cost Phi-4-mini 7 of 82 points on
GSM8K (NVIDIA/TensorRT-LLM#6895). vLLM logs one warning ("Using LongRoPE scaling factors …"). These checkpoints have two sets
of rotary factors. transformers uses the short factors for a sequence of at most ``original_max_position_embeddings`` tokens
(4096), and the long factors for a longer one. vLLM chooses one set for all sequences when the engine starts
(``phi3_long_rope_scaled_rope.py``, ``use_long_rope``), because cached keys cannot be rotated again. It chooses the long
factors as soon as ``max_model_len`` is above that length. If ``max_model_len`` is not set, vLLM uses the trained length, and
nothing is wrong.

What this changes: a rollout whose ``engine.max_model_len`` is above ``original_max_position_embeddings`` is refused. Prompt
and answer must then fit into that length.

When it can go: never, unless vLLM keeps the two kinds of sequences apart. If every sequence of the run, also the trainer's, is
longer than that, both sides use the long factors: switch the quirk off. A trainer that puts a long sequence into the same
batch as short ones uses the long factors for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Fact, ModelFlag, Quirk, Require, Severity, StaticProbe, no, purpose, report, setting, yes
from quirks_plugins.model_config.rope import of_kind

if TYPE_CHECKING:
    from quirks_core.facts.context import RunContext
    from worker.lab.kit.lab import Lab, Outcome

_TRAINED = "original_max_position_embeddings"


def _trained_length(context: RunContext) -> int:
    return int(context.model.config[_TRAINED])


_PHI = {"model_type": "phi3", "max_position_embeddings": 131072, _TRAINED: 4096, "rope_scaling": {"type": "longrope"}}

QUIRK = Quirk(
    id="longrope-short-sequences",
    title="With a max_model_len above LongRoPE's trained length, vLLM rotates short sequences with the long factors",
    flag=ModelFlag.MODEL_CONFIG,
    match=purpose("rollout")
    & (of_kind("longrope") | of_kind("su"))
    & setting("engine.max_model_len").above(Fact(f"model.config.{_TRAINED}")),
    adjustments=Require(
        "engine.max_model_len",
        at_most=_trained_length,
        reason="above it vLLM rotates sequences of every length with the long factors, and the trainer only long ones",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/pull/27431"),
        report("https://github.com/ggml-org/llama.cpp/issues/24823"),
        report("https://github.com/NVIDIA/TensorRT-LLM/pull/6895"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.rotary_embedding.phi3_long_rope_scaled_rope",
        r"self\.use_long_rope = max_model_len > original_max_position_embeddings",
        found_means_affected=True,
    ),
    examples=[
        yes(_PHI, {"engine.max_model_len": 8192}, refuses="engine.max_model_len"),
        yes({**_PHI, "rope_scaling": None, "rope_parameters": {"rope_type": "longrope"}}, {"engine.max_model_len": 4097}),
        no(_PHI, {"engine.max_model_len": 4096}),
        no(_PHI),
        no(_PHI, {"engine.max_model_len": 8192}, purpose="serve"),
        no({**_PHI, "rope_scaling": {"rope_type": "yarn"}}, {"engine.max_model_len": 8192}),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """A run of short sequences with a longer max_model_len is refused, or its logprobs are the trainer's."""
    from quirks_plugins.model_config.evidence import edited, refused_or_close

    factors = {"short_factor": [1.0] * 16, "long_factor": [1.0 + step for step in range(16)]}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors}
    # No sequence is longer than 64 tokens.
    model = edited(lab, "phi3", "longrope", {_TRAINED: 64, "rope_parameters": rope})
    return await refused_or_close(lab, model, {"max_model_len": 256})
