"""Context parallelism and sequence packing each work with one attention implementation of the trainer only.

What happens: another implementation gives wrong gradients without an error: packed sequences attend to each other.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from quirks_core import Kind, Quirk, Require, Severity, no, report, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2, fsdp2, sequence_packing
from quirks_plugins.runs import context_parallel

_SLOT = "train.attn_implementation"

QUIRK = Quirk(
    id="cp-attention-implementation",
    title="Context parallelism needs SDPA, sequence packing needs flash-attention-2",
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 | (fsdp2 & sequence_packing),
    adjustments=[
        Require(
            _SLOT,
            "sdpa",
            reason="context parallelism with FSDP2 works by replacing SDPA",
            when=context_parallel_on_fsdp2,
        ),
        Require(
            _SLOT,
            "flash_attention_2",
            reason="packed sequences are kept apart by flash-attention-2's variable-length kernels",
            when=sequence_packing & ~context_parallel_on_fsdp2,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("NVIDIA-NeMo/RL/pull/450"), report("NVIDIA-NeMo/RL/pull/704")],
    examples=[
        yes(settings=context_parallel(1, sequence_packing=True), gives={_SLOT: "flash_attention_2"}),
        yes(settings=context_parallel(sequence_packing=True), gives={_SLOT: "sdpa"}),
        yes(settings=context_parallel(attn_implementation="flash_attention_2"), refuses=[_SLOT, "must be 'sdpa'"]),
        no(settings=context_parallel(1)),
        no(settings=context_parallel(backend="megatron")),
    ],
)
