"""Context parallelism and sequence packing exclude each other on FSDP2.

What happens: context parallelism needs SDPA, packing needs flash-attention-2 to keep the packed sequences apart. No attention
serves both.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Refuse, Severity, report, setting

QUIRK = Quirk(
    id="cp-sequence-packing",
    title="Context parallelism needs SDPA and sequence packing needs flash-attention-2: not both with FSDP2",
    flag=ModelFlag.CONTEXT_PARALLEL,
    match=(
        setting("train.context_parallel_size").above(1)
        & setting("train.backend").one_of("fsdp2")
        & setting("train.sequence_packing").is_true()
    ),
    adjustments=(
        Refuse(
            "context parallelism works by replacing SDPA, sequence packing needs flash-attention-2",
            "set train.sequence_packing: false, or train.context_parallel_size: 1",
        ),
    ),
    severity=Severity.WRONG_OUTPUT,
    references=(report("https://github.com/NVIDIA-NeMo/RL/pull/450"),),
    examples=(
        Example(
            answer=Answer.YES,
            settings={"train.backend": "fsdp2", "train.context_parallel_size": 2, "train.sequence_packing": True},
        ),
        Example(answer=Answer.NO, settings={"train.backend": "fsdp2", "train.context_parallel_size": 2}),
        Example(
            answer=Answer.NO,
            settings={"train.backend": "megatron", "train.context_parallel_size": 2, "train.sequence_packing": True},
        ),
    ),
    since="0.1.0",
)
