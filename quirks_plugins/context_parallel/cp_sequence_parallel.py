"""Context parallelism and sequence parallelism at TP > 1 exclude each other on FSDP2.

What happens: the shapes do not fit, because both shard the sequence. Sequence parallelism scatters the sequence over the
tensor-parallel ranks, and context parallelism then tries to swap the sequence buffers of every rank.

What this changes: the run is refused.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, no, report, setting, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2
from quirks_plugins.runs import context_parallel

QUIRK = Quirk(
    id="cp-sequence-parallel",
    title="Context parallelism and sequence parallelism both shard the sequence: not both with FSDP2 at TP > 1",
    flag=ModelFlag.CONTEXT_PARALLEL,
    kind=Kind.RULE,
    match=(
        context_parallel_on_fsdp2
        & setting("train.sequence_parallel").is_true()
        & setting("train.tensor_parallel_size").above(1)
    ),
    adjustments=Refuse(
        "context parallelism cannot shard a sequence that sequence parallelism has scattered over tensor-parallel ranks",
        "set train.sequence_parallel: false, or train.context_parallel_size: 1",
    ),
    severity=Severity.CRASH,
    references=report("https://github.com/NVIDIA-NeMo/RL/issues/659"),
    examples=[
        yes(settings=context_parallel(sequence_parallel=True, tensor_parallel_size=2), refuses="train.sequence_parallel"),
        no(settings=context_parallel(sequence_parallel=True, tensor_parallel_size=1)),
        no(settings=context_parallel(sequence_parallel=False, tensor_parallel_size=2)),
        no(settings=context_parallel(1, sequence_parallel=True, tensor_parallel_size=2)),
        no(settings=context_parallel(backend="megatron", sequence_parallel=True, tensor_parallel_size=2)),
    ],
)
