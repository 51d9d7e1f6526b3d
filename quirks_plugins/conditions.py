"""Facts and conditions that several quirks use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Fact, described, model_type, setting, typed

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
_DTYPE_KEYS = ("config.dtype", "config.torch_dtype", "text_config.dtype", "text_config.torch_dtype")


def checkpoint_dtype(name: str) -> Match:
    """The dtype that vLLM takes from ``config.json`` is this one."""
    is_this: Match = described(
        _first_dtype(name), f"the checkpoint's dtype is `{name}`", f"the checkpoint's dtype is not `{name}`"
    )
    return is_this


def _first_dtype(name: str, keys: tuple[str, ...] = _DTYPE_KEYS) -> Match:
    fact = Fact(f"model.{keys[0]}")
    here = fact.one_of(name)
    if not keys[1:]:
        return here
    return here | (~fact.is_set() & _first_dtype(name, keys[1:]))


#: What the engine and the trainer compute in: the settings, else ``config.json``; autocast, else the trainer's weights.
ENGINE_COMPUTES = Fact("engine.computes_in")
TRAINER_COMPUTES = Fact("train.computes_in")
#: VLLM's CPU platform keeps linear weights as they are loaded, because oneDNN has no product of this dtype for this CPU. It has
#: one of float32 for every CPU (seen in vLLM 0.32.0 with oneDNN limited to AVX2, to AVX-512 and not at all). Some CPUs with
#: AVX-VNNI have AVX-NE-CONVERT, which Linux does not list and with which oneDNN has both (``cpu/platform.cpp``).
unpacked_on_cpu = described(
    Fact("platform.cpu.avx_vnni").one_of(False)
    & (
        (ENGINE_COMPUTES.one_of("bfloat16") & Fact("platform.cpu.avx512").one_of(False))
        | (ENGINE_COMPUTES.one_of("float16") & Fact("platform.cpu.avx512_fp16").one_of(False))
    ),
    "vLLM keeps linear weights unpacked, because this CPU has no product of the engine's dtype",
    "the CPU has a product of the engine's dtype, so that vLLM packs linear weights",
)

#: The model runner whose code has the defect; a proof on one runner is none for the other.
v1_model_runner = Fact("engine.model_runner").one_of("v1")
v2_model_runner = Fact("engine.model_runner").one_of("v2")

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
fp8_weights = described(
    Fact("model.quantization.quant_method").one_of("fp8", "fbgemm_fp8")
    | Fact("model.quantization.format").one_of("float-quantized")
    | Fact("model.quantization.quant_algo").matches("^FP8")
    | Fact("engine.quantization").one_of("fp8", "fp8_per_tensor", "fp8_per_block"),
    "the weights are FP8",
    "the weights are not FP8",
)
_capability = Fact("platform.gpu.capability")
#: GPUs before Ada and Hopper have no FP8, and vLLM's kernel for them (Marlin) takes activations in 16 bits.
without_fp8 = _capability.is_set() & _capability.below(89)
_cache = setting("engine.kv_cache_dtype")
cache_dtype_is_open = ~_cache.is_set() | _cache.one_of("auto")
#: VLLM then follows compressed-tensors' scheme, and ModelOpt's algorithm.
quantized_cache_of_checkpoint = described(
    cache_dtype_is_open
    & (
        Fact("model.quantization.kv_cache_scheme").is_set()
        | Fact("model.quantization.kv_cache_quant_algo").matches("^(fp8|nvfp4)$")
    ),
    "`engine.kv_cache_dtype` is open, and the checkpoint states a quantised KV cache",
    "`engine.kv_cache_dtype` is set, or the checkpoint states no quantised KV cache",
)
#: Most configurations leave the key out, and then their class decides: only a plain no is a no.
untied = (
    Fact("model.config.tie_word_embeddings").one_of(False) & ~Fact("model.config.text_config.tie_word_embeddings").is_true()
)
_dtype = setting("engine.dtype")
dtype_is_open = ~_dtype.is_set() | _dtype.one_of("auto")
#: Multi-head latent attention; of a multimodal model, in its language model.
latent_attention = described(
    Fact("model.text_config.qk_rope_head_dim").is_set(), "the model has latent attention", "the model has no latent attention"
)
#: Types whose ``config.json`` is often flat, and of which transformers makes a configuration with ``text_config``.
_FLAT = ("ernie4_5_vl_moe", "hunyuan_vl", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl")
#: An override at the top level does not reach the language model.
nested_language_model = described(
    Fact("model.config.text_config").is_set()
    | Fact("model.config.thinker_config").is_set()
    | Fact("model.config.llm_config").is_set()
    | Fact("model.config.language_config").is_set()
    | model_type(*_FLAT),
    "the model is multimodal, and its language model has a configuration of its own",
    "the language model has no configuration of its own",
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

#: TRL's colocate mode.
trl_in_process = setting("train.framework").one_of("trl") & setting("engine.distributed_executor_backend").one_of(
    "external_launcher"
)

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
