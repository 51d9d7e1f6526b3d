"""Drafts (MTP, EAGLE, n-grams) and a prefix cache on a model with recurrent layers: wrong tokens, or NaN, without an error.

What happens: accuracy falls from one evaluation to the next, tool calls leak, or a request gets "!" (token 0) up to its length
limit, and so does each retry, until the cache has turned over. Two ways lead there on the V1 model runner. A last chunk of a
prompt with as many tokens as a step with drafts is run by the CUDA graph for decoding, which updates the states of another
request (``_is_uniform_decode`` looks at numbers alone). And the number of accepted drafts is read after requests have changed
rows (vllm-project/vllm#53919, open). Before 0.26 states were also cached at other places than block borders.

When it can go: when the V1 model runner does. Read in 0.16.0, 0.22.0, 0.26.0, 0.28.0, 0.30.0 and 0.33.0; the V2 runner, which
0.29 and newer prefer, asks whether a batch has a prompt. Not run by us: no CPU engine has such graphs. vLLM leaves the prefix
cache of these models off unless one asks for it; trainers such as SkyRL ask.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, described, no, report, setting, unknown, yes
from quirks_core.declaration.match import environment, model_type, package, platform
from quirks_plugins.conditions import v1_model_runner

_CACHE, _DRAFTS = "engine.enable_prefix_caching", "engine.speculative_config"
_MTP = {_DRAFTS: {"method": "mtp", "num_speculative_tokens": 2}, _CACHE: True}
_HYBRID = (
    *("bamba", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "nemotron_h", "olmo_hybrid", "qwen3_5"),
    *("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2"),
)
#: Up to 0.28 none of these models is among those for which vLLM prefers V2.
_v1 = described(
    v1_model_runner | (package("vllm", fixed="0.29.0") & ~environment("VLLM_USE_V2_MODEL_RUNNER").is_set()),
    "the engine uses the V1 model runner",
    "the engine uses the V2 model runner",
)

QUIRK = Quirk(
    id="hybrid-prefix-drafts",
    title="Drafts and a prefix cache together corrupt the output of models with recurrent layers (Qwen3.5, Nemotron-H)",
    match=~platform("cpu") & model_type(*_HYBRID) & setting(_DRAFTS).is_set() & setting(_CACHE).is_true() & _v1,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Advise(
        f"on the V1 model runner, drafts and a prefix cache mix up the states of requests of this model: set {_CACHE}: false, "
        f"or leave {_DRAFTS} out"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#53912"),
        report("vllm-project/vllm#55766"),
        report("vllm-project/vllm#53051"),
        report("vllm-project/vllm#43559"),
        report("vllm-project/vllm#47194"),
        report("NovaSky-AI/SkyRL#1981"),
    ],
    evidence=StaticProbe("vllm.v1.worker.gpu_model_runner", r"max_num_scheduled_tokens == uniform_decode_query_len\)"),
    examples=[
        yes("qwen3_5", _MTP, vllm="0.28.0", platform="cuda", advises=_CACHE),
        yes("nemotron_h", _MTP, vllm="0.18.0", platform="cuda", purpose="serve"),
        yes("qwen3_5_moe", {**_MTP, _DRAFTS: {"method": "ngram", "num_speculative_tokens": 5}}, vllm="0.31.0", platform="cuda"),
        no("qwen3_5_moe", _MTP, vllm="0.33.0", platform="cuda"),
        no("qwen3_5", {**_MTP, _CACHE: False}, vllm="0.28.0", platform="cuda"),
        no("qwen3_5", {_CACHE: True}, vllm="0.28.0", platform="cuda"),
        unknown("qwen3_5", _MTP, platform="cuda"),
    ],
)
