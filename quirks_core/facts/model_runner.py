"""Which of vLLM's two model runners an engine uses, read as each release of vLLM decides it.

V1 is ``vllm.v1.worker.gpu_model_runner``, V2 is ``vllm.v1.worker.gpu.model_runner``; those of the CPU and XPU platforms inherit
from them. ``VllmConfig.use_v2_model_runner`` decides (vllm/config/vllm.py), before 0.22 the variable alone. Read in 0.16.0,
0.20.0, 0.22.0, 0.23.0, 0.24.0, 0.25.1 and every release from 0.26.0 to 0.33.0. Plugins of the group ``vllm.logits_processors``
make releases before 0.31 choose V1; they are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from quirks_core.facts.model import ModelFacts
from quirks_core.facts.packages import NEWEST_READ, OLDEST_READ
from quirks_core.facts.unknown import UNKNOWN, Facts, Unknown

#: The name of the fact, and of the value that an engine's workers report.
MODEL_RUNNER = "engine.model_runner"
Runner = Literal["v1", "v2"]

_VARIABLE = "env.VLLM_USE_V2_MODEL_RUNNER"
_MODULES: Mapping[str, Runner] = {"vllm.v1.worker.gpu_model_runner": "v1", "vllm.v1.worker.gpu.model_runner": "v2"}
#: From these releases on: V2 for some architectures, for dense models, for all models.
_SOME, _DENSE, _EVERY = (0, 22), (0, 25), (0, 29)
_MOE = frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"})
_MORE = _MOE | {"InklingForCausalLM", "InklingForConditionalGeneration", "LongcatFlashNgramForCausalLM"}
#: ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES`` of the releases that have it.
_ARCHITECTURES: Mapping[tuple[int, ...], frozenset[str]] = {
    (0, 22): frozenset({"Qwen3ForCausalLM"}),
    (0, 23): frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"}),
    (0, 24): _MOE | {"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"},
    (0, 25): _MOE,
    (0, 26): _MORE,
    (0, 27): _MORE | {"KimiK3ForConditionalGeneration"},
    (0, 28): _MORE | {"DeepseekV4ForCausalLM", "KimiK3ForConditionalGeneration"},
}
#: Some releases from 0.29 to 0.31 prefer V1 for some of these on ROCm; otherwise ROCm is like CUDA.
_ON_ROCM = {"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"}
_NEVER = ("suffix", "custom_class")
_UNTIL_32 = (*_NEVER, "medusa", "mlp_speculator")
_UNTIL_31 = (*_UNTIL_32, "ngram", "ngram_gpu")
_UNTIL_30 = (*_UNTIL_31, "draft_model")
#: Methods of speculative decoding that V2 lacks, by the first release with that list.
_LACKS: Mapping[tuple[int, ...], tuple[str, ...]] = {
    (0, 26): (*_UNTIL_30, "extract_hidden_states"),
    (0, 29): _UNTIL_30,
    (0, 31): _UNTIL_31,
    (0, 32): _UNTIL_32,
    (0, 33): _NEVER,
}
_DRAFT = "engine.speculative_config"
#: Arguments that choose a runner in some releases, together with others.
_OTHERS = (
    "engine.attention_config.hisparse_config",
    "engine.compilation_config.pass_config.enable_sp",
    "engine.convert",
    "engine.ec_transfer_config",
    "engine.enable_dbo",
    "engine.enable_elastic_ep",
    "engine.enable_prompt_embeds",
    "engine.enable_return_routed_experts",
    "engine.kv_sharing_fast_prefill",
    "engine.logits_processors",
    "engine.mamba_cache_mode",
    "engine.prefill_context_parallel_size",
    f"{_DRAFT}.enable_adaptive_verification",
    f"{_DRAFT}.parallel_drafting",
    f"{_DRAFT}.use_heterogeneous_vocab",
    "engine.ubatch_size",
    "engine.watermark_config",
)
#: Values of those arguments that choose nothing.
_NOTHING = (None, False, "auto", "generate", UNKNOWN)
_MODE, _STOCK = "engine.compilation_config.mode", (1, "STOCK_TORCH_COMPILE")
_GENERATES = re.compile("For(CausalLM|ConditionalGeneration)$")
#: What configurations of models with recurrent layers have, in a key or among their kinds of layers.
_RECURRENT = re.compile(
    "mamba|ssm|rwkv|conv|recurrent|linear_attention|linear_attn|linear_num|lightning|hybrid|state_size", re.I
)


def model_runner(run: Facts, model: ModelFacts) -> Runner | Unknown:
    """Returns the runner that the engine of a run will use; `UNKNOWN` where what decides was not read, or is not known."""
    platform, release = run.fact("platform"), release_read(run.fact("packages.vllm"))
    if release is None or any(run.fact(name) not in _NOTHING for name in _OTHERS) or run.fact(_MODE) in _STOCK:
        return UNKNOWN
    if (variable := run.fact(_VARIABLE)) is not None:
        try:
            return "v2" if int(variable) else "v1"
        except ValueError:
            return UNKNOWN
    if release < _SOME or platform == "cpu":  # V2 needs Triton, and that of PyPI has no backend for CPUs
        return "v1"
    method = _method(run)
    if platform not in ("cuda", "rocm") or method is UNKNOWN or (method == "dflash" and release < _EVERY):
        return UNKNOWN
    if platform == "rocm" and _EVERY <= release < (0, 32) and not _ON_ROCM.isdisjoint(model.architectures):
        return UNKNOWN
    if method == "dspark" and release >= _DENSE:
        return "v2"
    answers = (_is_default(run, model, release), _has_drafts(run, method, release))
    if False in answers:
        return "v1"
    return UNKNOWN if UNKNOWN in answers else "v2"


def runner_of(worker_runner: Any) -> Runner | None:
    """Returns which runner an engine's ``model_runner`` is, by the modules of its classes; None if it is neither."""
    modules = (kind.__module__ for kind in type(worker_runner).__mro__)
    return next((_MODULES[module] for module in modules if module in _MODULES), None)


def release_read(version: Any) -> tuple[int, ...] | None:
    """Returns major and minor number of a version of vLLM whose source was read; None of any other, such as a source build."""
    try:
        parsed = Version(version)
    except (InvalidVersion, TypeError):
        return None
    return parsed.release[:2] if OLDEST_READ <= parsed.release[:2] <= NEWEST_READ else None


def _method(run: Facts) -> Any:
    """The method of speculative decoding; None without one, `UNKNOWN` where vLLM infers it from the draft's checkpoint."""
    if run.fact(_DRAFT) is None:
        return None
    method = run.fact(f"{_DRAFT}.method")
    if not isinstance(method, str):
        return UNKNOWN
    return "mtp" if method.endswith("mtp") else method  # deepseek_mtp, for example


def _has_drafts(run: Facts, method: str | None, release: tuple[int, ...]) -> bool | Unknown:
    """Whether V2 of that release can draft by that method."""
    if method is None:
        return True
    lists = [names for first, names in _LACKS.items() if first <= release]
    if not lists:
        return UNKNOWN
    stages = run.fact("engine.pipeline_parallel_size") or 1
    return method not in lists[-1] and not (method == "eagle3" and stages > 1 and release < (0, 30))


def _is_default(run: Facts, model: ModelFacts, release: tuple[int, ...]) -> bool | Unknown:
    """Whether vLLM prefers V2 for the model (``_is_default_v2_model_runner_model``)."""
    if release >= _EVERY:
        return True
    architectures, is_moe = model.architectures, run.fact("model.is_moe")
    if not architectures or is_moe is UNKNOWN:
        return UNKNOWN
    is_named = not _ARCHITECTURES[release].isdisjoint(architectures)
    if release < _DENSE:
        return is_named and (release >= (0, 24) or not (is_moe or model.is_quantized))
    if is_moe and not is_named:
        return False
    return UNKNOWN if _may_be_recurrent(model) or not all(map(_GENERATES.search, architectures)) else True


def _may_be_recurrent(model: ModelFacts) -> bool:
    config = model.text_config
    kinds = config.get("layer_types")
    return any(_RECURRENT.search(str(word)) for word in (*config, *(kinds if isinstance(kinds, list) else ())))
