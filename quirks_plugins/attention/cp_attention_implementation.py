"""Context parallelism and sequence packing each work with one attention implementation of the trainer only.

What happens: another implementation gives wrong gradients without an error. Packed rows need the variable-length kernels of
flash-attention-2; without them the packed sequences attend to each other. PyTorch's context parallelism, with FSDP2, works by
replacing SDPA, so it needs SDPA.

What this changes: ``train.attn_implementation`` must be ``sdpa`` for context parallelism on FSDP2, and otherwise
``flash_attention_2`` for sequence packing.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import ModelFlag, Quirk, Require, Severity, no, report, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2, fsdp2, sequence_packing
from quirks_plugins.runs import context_parallel

QUIRK = Quirk(
    id="cp-attention-implementation",
    title="Context parallelism needs SDPA, sequence packing needs flash-attention-2",
    flag=ModelFlag.ATTENTION,
    match=context_parallel_on_fsdp2 | (fsdp2 & sequence_packing),
    adjustments=[
        Require(
            "train.attn_implementation",
            "sdpa",
            reason="context parallelism with FSDP2 works by replacing SDPA",
            when=context_parallel_on_fsdp2,
        ),
        Require(
            "train.attn_implementation",
            "flash_attention_2",
            reason="packed sequences are kept apart by flash-attention-2's variable-length kernels",
            when=sequence_packing & ~context_parallel_on_fsdp2,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("https://github.com/NVIDIA-NeMo/RL/pull/450"), report("https://github.com/NVIDIA-NeMo/RL/pull/704")],
    examples=[
        yes(settings=context_parallel()),
        yes(settings={"train.backend": "fsdp2", "train.sequence_packing": True}),
        no(settings=context_parallel(1)),
        no(settings=context_parallel(backend="megatron")),
    ],
)
