"""What excludes context parallelism on FSDP2, one row each.

What happens: PyTorch's context parallelism gives each rank a part of the sequence and replaces SDPA by a ring that takes only
the causal mask. What needs another mask, a state along the sequence or the whole sequence cannot be trained so.

Evidence: the rules are NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from quirks_core import Fact, Kind, Quirk, Refuse, Severity, model_type, no, report, setting, unknown, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2, sequence_packing
from quirks_plugins.runs import context_parallel

_VISION = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}

# Gemma-3 passes its mask even where it masks nothing. NeMo RL refuses `gemma3` and names `Gemma3ForCausalLM` in its message;
# `gemma3_text` is the same model without the vision tower.
CP_GEMMA3 = Quirk(
    id="cp-gemma3",
    title="Gemma-3 passes an attention mask, which context parallelism with FSDP2 cannot take",
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & model_type("gemma3", "gemma3_text"),
    adjustments=Refuse(
        "context parallelism replaces SDPA by a ring without attention masks, and Gemma-3 needs its mask",
        "set train.context_parallel_size: 1 (tensor or sequence parallelism also shortens what each rank holds)",
    ),
    severity=Severity.CRASH,
    references=report("NVIDIA-NeMo/RL/pull/450"),
    examples=[
        yes("gemma3_text", context_parallel(), refuses="train.context_parallel_size"),
        no("gemma3", context_parallel(1)),
        no("gemma3", context_parallel(backend="megatron")),
        unknown(settings=context_parallel()),
    ],
)

# Three of four layers are gated delta nets: without the state of the rank before, each rank would begin with an empty one.
# NeMo RL (`nemo_rl/models/automodel/setup.py`) refuses `qwen3_5` and lets the MoE model pass, for which Automodel has a backend
# of its own (with Transformer Engine and flash-linear-attention). `qwen3_5_text` is the model without the vision tower.
CP_QWEN3_5 = Quirk(
    id="cp-qwen3-5",
    title="Dense Qwen3.5 carries a state along the sequence, which context parallelism with FSDP2 does not pass on",
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & model_type("qwen3_5", "qwen3_5_text"),
    adjustments=Refuse(
        "context parallelism shards the sequence, and Qwen3.5's gated delta nets need the state of the rank before",
        "set train.context_parallel_size: 1 (tensor parallelism also shortens what each rank holds)",
    ),
    severity=Severity.CRASH,
    references=[report("NVIDIA-NeMo/Automodel#1498"), report("NVIDIA-NeMo/RL/pull/2900")],
    examples=[
        yes("qwen3_5_text", context_parallel(), refuses="train.context_parallel_size"),
        no("qwen3_5_text", context_parallel(1)),
        no("qwen3_5_text", context_parallel(backend="megatron")),
        unknown(settings=context_parallel()),
    ],
)

# Packing needs flash-attention-2 to keep the packed sequences apart, and no attention implementation supports both.
CP_SEQUENCE_PACKING = Quirk(
    id="cp-sequence-packing",
    title="Context parallelism needs SDPA and sequence packing needs flash-attention-2: not both with FSDP2",
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & sequence_packing,
    adjustments=Refuse(
        "context parallelism works by replacing SDPA, sequence packing needs flash-attention-2",
        "set train.sequence_packing: false, or train.context_parallel_size: 1",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("NVIDIA-NeMo/RL/pull/704"),
    examples=[
        yes(settings=context_parallel(sequence_packing=True), refuses="train.sequence_packing"),
        no(settings=context_parallel()),
        no(settings=context_parallel(1, sequence_packing=True)),
        no(settings=context_parallel(backend="megatron", sequence_packing=True)),
    ],
)

# The shapes do not fit: context parallelism tries to swap the sequence buffers of every rank, which are scattered already.
CP_SEQUENCE_PARALLEL = Quirk(
    id="cp-sequence-parallel",
    title="Context parallelism and sequence parallelism both shard the sequence: not both with FSDP2 at TP > 1",
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
    references=report("NVIDIA-NeMo/RL#659"),
    examples=[
        yes(settings=context_parallel(sequence_parallel=True, tensor_parallel_size=2), refuses="train.sequence_parallel"),
        no(settings=context_parallel(sequence_parallel=True, tensor_parallel_size=1)),
        no(settings=context_parallel(sequence_parallel=False, tensor_parallel_size=2)),
        no(settings=context_parallel(1, sequence_parallel=True, tensor_parallel_size=2)),
        no(settings=context_parallel(backend="megatron", sequence_parallel=True, tensor_parallel_size=2)),
    ],
)

# A rank holds placeholders for features that another rank computes; media tokens also need attention masks.
CP_VLM = Quirk(
    id="cp-vlm",
    title="Context parallelism shards the sequence before media features are in it: not with multimodal models on FSDP2",
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & Fact("model.is_multimodal").is_true(),
    adjustments=Refuse(
        "the sequence is sharded before image and audio features are put in, so they land on the wrong ranks",
        "set train.context_parallel_size: 1, or train the text-only checkpoint",
    ),
    severity=Severity.CRASH,
    references=report("NVIDIA-NeMo/RL/pull/712"),
    examples=[
        yes(_VISION, context_parallel(), refuses="train.context_parallel_size"),
        no("qwen3", context_parallel()),
        no(_VISION, context_parallel(1)),
        no(_VISION, context_parallel(backend="megatron")),
    ],
)
