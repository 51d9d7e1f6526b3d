"""LongRoPE (Phi-3, Phi-4-mini): above the trained length vLLM rotates short sequences with other factors than the trainer.

What happens: a rollout with ``max_model_len: 8192`` samples every short answer from another model than the one that is trained.
In TensorRT-LLM's tests the long factors cost Phi-4-mini 7 of 82 points on GSM8K (NVIDIA/TensorRT-LLM#6895). These checkpoints
have two sets of rotary factors. transformers uses the short ones for a sequence of at most ``original_max_position_embeddings``
tokens (4096), and the long ones for a longer one. vLLM chooses one set for all sequences at the start (``use_long_rope``),
because cached keys cannot be rotated again: the long one as soon as ``max_model_len`` is above that length. If it is not set,
vLLM uses the trained length, and nothing is wrong. No setting helps a run that needs longer sequences: prompt and answer must
fit into that length, or both programs must use the long factors throughout.

When it can go: never, unless vLLM keeps the two kinds of sequences apart. It has chosen one set since 0.11.1
(vllm-project/vllm#27431); 0.11.0 chose by batch.

Evidence: a test on the real engine (tests/engine/test_longrope.py); advice changes nothing, so that no paired run can show it.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, purpose, setting
from quirks_plugins.model_config.rope import NAMES, of_kind

_TRAINED = "original_max_position_embeddings"
_SLOT = "engine.max_model_len"
_LENGTH = setting(_SLOT)
#: Beside the mapping (Phi-3), or in it (Phi-3.5-MoE).
_beside = Fact(f"model.config.{_TRAINED}")
_new, _old = (Fact(f"model.config.{name}.{_TRAINED}") for name in NAMES)
_above_trained = described(
    _LENGTH.above(_beside) | (~_beside.is_set() & (_LENGTH.above(_new) | _LENGTH.above(_old))),
    f"`engine.max_model_len` is above the checkpoint's `{_TRAINED}`",
    f"`engine.max_model_len` is at most the checkpoint's `{_TRAINED}`",
)

_PHI = {"model_type": "phi3", "max_position_embeddings": 131072, _TRAINED: 4096, "rope_scaling": {"type": "longrope"}}
_PHI_MOE = {"model_type": "phimoe", "max_position_embeddings": 131072, "rope_scaling": {"type": "longrope", _TRAINED: 4096}}

QUIRK = Quirk(
    id="longrope-short-sequences",
    title="With a max_model_len above LongRoPE's trained length, vLLM rotates short sequences with the long factors",
    match=purpose("rollout") & of_kind("longrope", "su") & _above_trained,
    affected=Affected("vllm", introduced="0.11.1"),
    adjustments=Advise(
        f"engine.max_model_len is above {_TRAINED}: vLLM rotates sequences of every length with the long factors, the trainer "
        "only long ones, so their logprobs differ; lower it to that length if prompt and answer fit"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/27431"),
        report("ggml-org/llama.cpp#24823"),
        report("NVIDIA/TensorRT-LLM/pull/6895"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.rotary_embedding.phi3_long_rope_scaled_rope",
        r"self\.use_long_rope = max_model_len > original_max_position_embeddings",
    ),
    examples=[
        yes(_PHI, {"engine.max_model_len": 8192}, vllm="0.32.0", advises="lower it to that length"),
        yes({**_PHI, "rope_scaling": None, "rope_parameters": {"rope_type": "longrope"}}, {_SLOT: 4097}, vllm="0.32.0"),
        yes(_PHI_MOE, {"engine.max_model_len": 32768}, vllm="0.32.0"),
        no(_PHI_MOE, {"engine.max_model_len": 4096}, vllm="0.32.0"),
        no(_PHI, {"engine.max_model_len": 8192}, vllm="0.11.0"),
        no(_PHI, {"engine.max_model_len": 8192}, vllm="0.32.0", purpose="serve"),
        no({**_PHI, "rope_scaling": {"rope_type": "yarn"}}, {"engine.max_model_len": 8192}, vllm="0.32.0"),
        unknown(_PHI, {"engine.max_model_len": 8192}),
    ],
)
