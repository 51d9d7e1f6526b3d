"""Why rows of the sweep are not right: a quirk, a text for upstream, or a limit of the engine."""

from __future__ import annotations

from collections.abc import Mapping

_MAMBA_1 = """vLLM's CPU build has no kernel for the selective scan of Mamba 1 (`selective_scan_fwd`), and finds out at the
first request. Mamba 2 runs."""

_SPARSE = "vLLM's CPU platform has no sparse attention, and the engine says so at the start."

#: By kind, Markdown for a page in docs. Rows that a quirk refuses explain themselves.
EXPLANATIONS: Mapping[str, str] = {
    "axk1": """transformers has the norm after the MLP in MoE layers alone, vLLM in dense layers as well, so vLLM cannot
load what transformers writes of a model whose first layer is dense.""",
    "bamba": """vLLM has dropped its own class in 0.23, and its Transformers backend runs no Mamba layers.""",
    "cohere2:window": """vLLM's sliding window is one token longer than that of transformers
([text for upstream](upstream/cohere2-sliding-window.md)); with a window of 17 in transformers alone, all tokens are equal. The
rows `cohere2` and `cohere2_moe`, whose sequences are shorter than the window, are right.""",
    "dbrx": """vLLM 0.32 cannot load DBRX, from disk either: its loader looks for a tensor of the experts by a name that they no
longer have.""",
    "deepseek_v32": _SPARSE,
    "ernie4_5_moe": """the CPU platform's router ignores the correction bias
([text for upstream](upstream/cpu-router-correction-bias.md)); with the bias set to zero in transformers, all tokens are
equal.""",
    "falcon_mamba": _MAMBA_1,
    "gemma3n_text": """vLLM leaves out the per-layer embeddings of a text-only checkpoint
([text for upstream](upstream/gemma3n-per-layer-embeddings.md)); with these left out of transformers as well, all tokens are
equal.""",
    "glm_moe_dsa": _SPARSE,
    "hrm_text": """refits are as good as a load from disk, and vLLM's own model differs from transformers from the first
layer on (0.1 nats). Which of the two is right is not known.""",
    "jamba": _MAMBA_1,
    "kimi_linear": """vLLM refuses its own configuration of the model: it sets a block size for the state, and wants prefix
caching then. With prefix caching it has not been tried.""",
    "laguna": """the CPU platform's router knows no sigmoid without groups, so the first request ends the engine, from disk too
([text for upstream](upstream/cpu-router-correction-bias.md)).
The refit before it finds something else: vLLM's loader drops the routers' correction bias without a word
([text for upstream](upstream/laguna-router-bias.md)).""",
    "longcat_flash": """transformers writes tensors of the experts that compute nothing (`zero_expert_num`), too, and vLLM's
loader knows the routed ones alone.""",
    "mamba": _MAMBA_1,
    "minimax_m2": """the CPU platform's router knows no sigmoid and ignores the correction bias
([text for upstream](upstream/cpu-router-correction-bias.md)). The kit's checkpoint says softmax so that it runs at all;
transformers takes the sigmoid in any case.""",
    "olmo_hybrid": """its layers call Triton (`triton.set_allocator`), which vLLM's CPU platform replaces by a stand-in
without that function.""",
    "phimoe": """transformers names the class `PhimoeForCausalLM`, and vLLM knows `PhiMoEForCausalLM` alone. What vLLM does not
know runs on its Transformers backend, which cannot run this model's experts. See `phimoe:released`.""",
    "phimoe:released": """refits are as good as a load from disk, and vLLM's own model differs from transformers from the first
layer on. Which of the two is right is not known.""",
}
