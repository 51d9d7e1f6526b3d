"""The trainer's attention follows from context parallelism and sequence packing.

What happens: packed rows need flash-attention-2's variable-length kernels, or sequences attend to each other. PyTorch's
context parallelism, with FSDP2, works by replacing SDPA. Another implementation gives wrong gradients without an error.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Require, Severity, report, setting

_fsdp2 = setting("train.backend").one_of("fsdp2")
_context_parallel = setting("train.context_parallel_size").above(1)
_packing = setting("train.sequence_packing").is_true()

QUIRK = Quirk(
    id="cp-attention-implementation",
    title="Context parallelism needs SDPA, sequence packing needs flash-attention-2",
    flag=ModelFlag.ATTENTION,
    match=_fsdp2 & (_context_parallel | _packing),
    adjustments=(
        Require(
            "train.attn_implementation",
            "sdpa",
            reason="context parallelism with FSDP2 works by replacing SDPA",
            when=_context_parallel,
        ),
        Require(
            "train.attn_implementation",
            "flash_attention_2",
            reason="packed sequences are kept apart by flash-attention-2's variable-length kernels",
            when=_packing & ~_context_parallel,
        ),
    ),
    severity=Severity.WRONG_OUTPUT,
    references=(report("https://github.com/NVIDIA-NeMo/RL/pull/450"),),
    examples=(
        Example(answer=Answer.YES, settings={"train.backend": "fsdp2", "train.context_parallel_size": 2}),
        Example(answer=Answer.YES, settings={"train.backend": "fsdp2", "train.sequence_packing": True}),
        Example(answer=Answer.NO, settings={"train.backend": "fsdp2", "train.context_parallel_size": 1}),
        Example(answer=Answer.NO, settings={"train.backend": "megatron", "train.context_parallel_size": 2}),
    ),
    since="0.1.0",
)
