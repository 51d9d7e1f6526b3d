"""Vision-language models cannot be trained with context parallelism on FSDP2.

What happens: the sequence is sharded by position before the media features are inserted, so a rank holds placeholders for
features that another rank computes. In addition, media tokens need attention masks, and the ring of PyTorch's context
parallelism accepts no mask.

What this changes: the run is refused.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Fact, Kind, ModelFlag, Quirk, Refuse, Severity, no, report, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2
from quirks_plugins.runs import context_parallel

_VISION = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}

QUIRK = Quirk(
    id="cp-vlm",
    title="Context parallelism shards the sequence before media features are in it: not with multimodal models on FSDP2",
    flag=ModelFlag.CONTEXT_PARALLEL,
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & Fact("model.is_multimodal").is_true(),
    adjustments=Refuse(
        "the sequence is sharded before image and audio features are put in, so they land on the wrong ranks",
        "set train.context_parallel_size: 1, or train the text-only checkpoint",
    ),
    severity=Severity.CRASH,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/712"),
    examples=[
        yes(_VISION, context_parallel(), refuses="train.context_parallel_size"),
        yes({"model_type": "some_vlm", "audio_config": {"depth": 2}}, context_parallel()),
        no({"model_type": "gemma3_text", "vision_config": None}, context_parallel()),
        no("qwen3", context_parallel()),
        no(_VISION, context_parallel(1)),
        no(_VISION, context_parallel(backend="megatron")),
    ],
)
