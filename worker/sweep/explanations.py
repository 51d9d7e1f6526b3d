"""Why rows of the sweep are not right: a quirk, a text for upstream, or a limit of the engine."""

from __future__ import annotations

from collections.abc import Mapping

_MAMBA_1 = """vLLM's CPU build has no kernel for the selective scan of Mamba 1 (`selective_scan_fwd`), and finds out at the
first request. Mamba 2 runs."""

#: By kind, Markdown for a page in docs. Rows that a quirk refuses explain themselves.
EXPLANATIONS: Mapping[str, str] = {
    "cohere2:window": """vLLM's sliding window is one token longer than that of transformers
([text for upstream](upstream/cohere2-sliding-window.md)); with a window of 17 in transformers alone, all tokens are equal. The
rows `cohere2` and `cohere2_moe`, whose sequences are shorter than the window, are right.""",
    "dbrx": """vLLM 0.32 cannot load DBRX, from disk either: its loader looks for a tensor of the experts by a name that they no
longer have.""",
    "ernie4_5_moe": """the CPU platform's router ignores the correction bias
([text for upstream](upstream/cpu-router-correction-bias.md)); with the bias set to zero in transformers, all tokens are
equal.""",
    "falcon_mamba": _MAMBA_1,
    "gemma3n_text": """vLLM leaves out the per-layer embeddings of a text-only checkpoint
([text for upstream](upstream/gemma3n-per-layer-embeddings.md)); with these left out of transformers as well, all tokens are
equal.""",
    "jamba": _MAMBA_1,
    "laguna": """the CPU platform's router knows no sigmoid without groups, so the first request ends the engine, from disk too
([text for upstream](upstream/cpu-router-correction-bias.md)). Why the refit before it lacks the routers' bias is not known.""",
    "mamba": _MAMBA_1,
    "minimax_m2": """the CPU platform's router knows no sigmoid and ignores the correction bias
([text for upstream](upstream/cpu-router-correction-bias.md)). The kit's checkpoint says softmax so that it runs at all;
transformers takes the sigmoid in any case.""",
    "phimoe": """transformers names the class `PhimoeForCausalLM`, and vLLM knows `PhiMoEForCausalLM` alone. What vLLM does not
know runs on its Transformers backend, which cannot run this model's experts. See `phimoe:released`.""",
    "phimoe:released": """refits are as good as a load from disk, and vLLM's own model differs from transformers from the first
layer on. Which of the two is right is not known.""",
}
