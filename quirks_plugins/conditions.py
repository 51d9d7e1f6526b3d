"""Facts and conditions that several quirks use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Fact, described, setting, typed

if TYPE_CHECKING:
    from quirks_core.declaration.match import Match

TP = setting("engine.tensor_parallel_size")
PP = setting("engine.pipeline_parallel_size")
DP = setting("engine.data_parallel_size")
EP = setting("parallel.expert_parallel_size")
STRATEGY = setting("parallel.dp_strategy")
GPUS_PER_NODE = setting("cluster.gpus_per_node")

#: What a user types to have an engine compute in another dtype than bfloat16.
NOT_BFLOAT16 = ("float32", "float", "float16", "half")

#: Where vLLM looks for a checkpoint's dtype, the first that is there.
_DTYPE_KEYS = ("dtype", "torch_dtype", "text_config.dtype", "text_config.torch_dtype")


def checkpoint_dtype(name: str) -> Match:
    """The dtype that vLLM takes from ``config.json`` is this one."""
    is_this: Match = described(
        _first_dtype(name), f"the checkpoint's dtype is `{name}`", f"the checkpoint's dtype is not `{name}`"
    )
    return is_this


def _first_dtype(name: str, keys: tuple[str, ...] = _DTYPE_KEYS) -> Match:
    fact = Fact(f"model.config.{keys[0]}")
    here = fact.one_of(name)
    if not keys[1:]:
        return here
    return here | (~fact.is_set() & _first_dtype(name, keys[1:]))


_dtype = setting("engine.dtype")
_float16 = _dtype.one_of("float16", "half") | (~_dtype.one_of("bfloat16", "float32", "float") & checkpoint_dtype("float16"))
_bfloat16 = _dtype.one_of("bfloat16") | (~_dtype.one_of(*NOT_BFLOAT16) & checkpoint_dtype("bfloat16"))
#: The engine computes in bfloat16 or float16, according to the settings and ``config.json``.
half = described(
    _dtype.one_of("bfloat16", "float16", "half")
    | ((~_dtype.is_set() | _dtype.one_of("auto")) & (_first_dtype("bfloat16") | _first_dtype("float16"))),
    "the engine computes in bfloat16 or float16",
    "the engine computes in another dtype than bfloat16 and float16",
)
#: VLLM's CPU platform keeps linear weights as they are loaded, because oneDNN has no product of this dtype for this CPU. It has
#: one of float32 for every CPU (seen in vLLM 0.32.0 with oneDNN limited to AVX2, to AVX-512 and not at all). Some CPUs with
#: AVX-VNNI have AVX-NE-CONVERT, which Linux does not list and with which oneDNN has both (``cpu/platform.cpp``).
unpacked_on_cpu = described(
    Fact("platform.cpu.avx_vnni").one_of(False)
    & ((_bfloat16 & Fact("platform.cpu.avx512").one_of(False)) | (_float16 & Fact("platform.cpu.avx512_fp16").one_of(False))),
    "vLLM keeps linear weights unpacked, because this CPU has no product of the engine's dtype",
    "the CPU has a product of the engine's dtype, so that vLLM packs linear weights",
)

#: The model runner whose code has the defect; a proof on one runner is none for the other.
v1_model_runner = Fact("engine.model_runner").one_of("v1")
v2_model_runner = Fact("engine.model_runner").one_of("v2")

#: The trainer was declared to compute in a shorter dtype than that of its weights, by torch's autocast.
under_autocast = described(
    typed("train.autocast") & setting("train.autocast").one_of("bfloat16", "float16"),
    "the trainer computes under autocast",
    "no autocast of the trainer is known",
)

#: TP x PP: the ranks that hold one copy of the model.
REPLICA = Fact("parallel.replica_size")
#: DP x TP: the ranks over which one vLLM data-parallel group spreads its experts (per pipeline stage).
EXPERT_GROUP = Fact("parallel.expert_group_size")
#: DP x TP x PP.
NUM_RANKS = Fact("parallel.num_ranks")
#: Nodes x GPUs of each; absent where no number of GPUs is configured.
NUM_GPUS = Fact("cluster.num_gpus")
NUM_EXPERTS = Fact("model.num_experts")

several_replicas = DP.above(1)
mixture = Fact("model.is_moe").is_true()
#: As the engine loads it: ``hf_overrides`` may have emptied the checkpoint's ``quantization_config``.
quantized = described(
    Fact("model.is_quantized").is_true(), "the engine's weights are quantised", "the engine's weights are not quantised"
)
#: Multi-head latent attention; of a multimodal model, in its language model.
latent_attention = described(
    Fact("model.config.qk_rope_head_dim").is_set() | Fact("model.config.text_config.qk_rope_head_dim").is_set(),
    "the model has latent attention",
    "the model has no latent attention",
)
dense = Fact("model.is_moe").one_of(False)
#: Every configuration of Nemotron-H has a number of experts; the pattern of layers declares which layers have them.
nemotron_h_experts = described(
    Fact("model.config.hybrid_override_pattern").matches("E") | Fact("model.config.layers_block_type").any_in("moe"),
    "its layers have experts",
    "its layers have no experts",
)
asynchronous = setting("engine.async_engine").is_true()
synchronous = setting("engine.async_engine").one_of(False)

actors = STRATEGY.one_of("actors")
one_engine = STRATEGY.one_of("engine")
independent = STRATEGY.one_of("independent")
one_group = STRATEGY.one_of("actors", "engine")
no_strategy = ~STRATEGY.is_set()

expert_flag = setting("engine.enable_expert_parallel").is_true()
#: The user configures sharded experts, by the flag or by a size.
sharded_experts = described(
    expert_flag | EP.above(1), "the run shares experts among ranks", "the run does not share experts among ranks"
)
#: The user configures experts that are shared by more ranks than one replica has. The flag alone means what it means to vLLM:
#: all ranks of the data-parallel group.
beyond_one_replica = described(
    EP.above(TP) | (expert_flag & ~EP.is_set()),
    "the run shares experts among replicas",
    "the run does not share experts among replicas",
)
#: The replicas are, or by default will be, ranks of one vLLM data-parallel group.
will_be_one_group = described(
    one_group | (no_strategy & beyond_one_replica),
    "the replicas are one data-parallel group",
    "the replicas are independent engines",
)

dummy_weights = setting("engine.load_format").one_of("dummy")
only_parameters = setting("refit.scope").one_of("parameters")
insists_on_parameters = typed("refit.scope") & only_parameters
insists_on_dummy_weights = typed("engine.load_format") & dummy_weights

#: The engine is that of our own worker or group: only they have this setting.
our_worker = described(
    setting("engine.generate_from_dummy").is_set(), "the engine is our worker's", "the engine is another program's"
)

fsdp2 = setting("train.backend").one_of("fsdp2")
#: Context parallelism as PyTorch does it.
context_parallel_on_fsdp2 = fsdp2 & setting("train.context_parallel_size").above(1)
sequence_packing = setting("train.sequence_packing").is_true()
