"""Context parallelism and sequence packing exclude each other on FSDP2.

What happens: context parallelism needs SDPA, and packing needs flash-attention-2 to keep the packed sequences apart. No
attention implementation supports both.

What this changes: the run is refused.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, no, report, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2, sequence_packing
from quirks_plugins.runs import context_parallel

QUIRK = Quirk(
    id="cp-sequence-packing",
    title="Context parallelism needs SDPA and sequence packing needs flash-attention-2: not both with FSDP2",
    flag=ModelFlag.CONTEXT_PARALLEL,
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & sequence_packing,
    adjustments=Refuse(
        "context parallelism works by replacing SDPA, sequence packing needs flash-attention-2",
        "set train.sequence_packing: false, or train.context_parallel_size: 1",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/704"),
    examples=[
        yes(settings=context_parallel(sequence_packing=True), refuses="train.sequence_packing"),
        no(settings=context_parallel()),
        no(settings=context_parallel(1, sequence_packing=True)),
        no(settings=context_parallel(backend="megatron", sequence_packing=True)),
    ],
)
