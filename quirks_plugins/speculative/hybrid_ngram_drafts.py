"""N-gram drafts on a model with recurrent layers, without a prefix cache: loops and drift, where nothing may change.

What happens: with ``method: ngram`` greedy answers differ from those without drafts, and fall into repetition. A step that
accepted drafts leaves a request's state in another place than a step without drafts reads it from
(``GDNAttentionMetadataBuilder``: column 0 of the block table), and only methods that may find no draft have such steps. MTP and
EAGLE draft at each step. With a prefix cache the states are moved, and other things go wrong (`hybrid-prefix-drafts`).

When it can go: when vllm-project/vllm#52942, which is open, has come into the oldest supported vLLM. Read in 0.18.0, 0.22.0,
0.26.0, 0.28.0 and 0.33.0, in the V1 model runner; V2 takes n-grams from 0.32 on. Reported on a GH200, not run by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, no, report, setting, unknown, yes
from quirks_core.declaration.match import Fact, model_type, platform
from quirks_plugins.conditions import v1_model_runner

_CACHE, _DRAFTS = "engine.enable_prefix_caching", "engine.speculative_config"
_NGRAM = {_DRAFTS: {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5}}
_GDN = ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")

QUIRK = Quirk(
    id="hybrid-ngram-drafts",
    title="N-gram drafts corrupt the recurrent states of Qwen3-Next and Qwen3.5",
    match=~platform("cpu")
    & model_type(*_GDN)
    & Fact(f"{_DRAFTS}.method").one_of("ngram", "ngram_gpu")
    & ~setting(_CACHE).is_true()
    & v1_model_runner,
    affected=Affected("vllm", introduced="0.18.0"),
    adjustments=Advise(
        f"a step without drafts reads an old recurrent state of this model after one with n-gram drafts, and answers drift: "
        f"use the model's own MTP in {_DRAFTS}, or no drafts"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#39273"), report("vllm-project/vllm/pull/52942")],
    evidence=StaticProbe("vllm.v1.attention.backends.gdn_attn", r"non_spec_state_indices_tensor = block_table_tensor\[:, 0\]"),
    examples=[
        yes("qwen3_5_moe", _NGRAM, vllm="0.31.0", platform="cuda", advises="MTP"),
        yes("qwen3_next", _NGRAM, vllm="0.18.0", platform="cuda", purpose="serve"),
        no("qwen3_5_moe", {**_NGRAM, _CACHE: True}, vllm="0.31.0", platform="cuda"),
        no("qwen3_5_moe", _NGRAM, vllm="0.33.0", platform="cuda"),
        unknown("qwen3_5_moe", _NGRAM, platform="cuda"),
    ],
)
