"""DeepScaleR recipes: code that Inductor compiled hurts convergence.

What happens: training curves of DeepScaleR fall behind when rollouts run on vLLM's default compilation. NeMo RL first turned
off all of it, CUDA graphs included (NVIDIA-NeMo/RL#857), and found later that Inductor alone is to blame (#1014, #1962). Its
recipes for 8K and 24K tokens now run with CUDA graphs and the backend ``eager`` (#3097).

What this changes: ``engine.compilation_config.backend`` is ``eager`` by default: vLLM still captures CUDA graphs, and Inductor
compiles nothing. A recipe that itself sets the backend or ``engine.enforce_eager`` wins.

When it can go: when a change of vLLM or PyTorch is shown to have made it superfluous. Until then it is only a default, not a
requirement.

Evidence: training curves in the references; not reproduced by us.
"""

from __future__ import annotations

from quirks_core import Default, Fact, ModelFlag, Quirk, Severity, fix, model_name, no, purpose, report, yes

_SLOT = "engine.compilation_config"

QUIRK = Quirk(
    id="deepscaler-eager",
    title="DeepScaleR converges worse when rollouts run code that Inductor compiled",
    flag=ModelFlag.ENFORCE_EAGER,
    match=purpose("rollout") & (model_name("deepscaler") | Fact("recipe").matches("deepscaler")),
    adjustments=Default(_SLOT, {"backend": "eager"}),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/NVIDIA-NeMo/RL/pull/857"),
        fix("https://github.com/NVIDIA-NeMo/RL/pull/1014"),
        fix("https://github.com/NVIDIA-NeMo/RL/pull/1962"),
        fix("https://github.com/NVIDIA-NeMo/RL/pull/3097"),
    ],
    examples=[
        yes(name="DeepScaleR-1.5B-Preview", gives={_SLOT: {"backend": "eager"}}),
        yes(name="my-deepscaler-run"),
        yes(name="DeepSeek-R1-Distill-Qwen-1.5B", recipe="grpo-deepscaler-1.5b-8K"),
        yes(settings={_SLOT: {"backend": "inductor", "cudagraph_mode": "NONE"}}, recipe="DeepScaleR", gives={}),
        yes(settings={"engine.enforce_eager": True}, recipe="deepscaler", gives={_SLOT: {"backend": "eager"}}),
        no(name="Qwen3-1.7B"),
        no(name="DeepSeek-R1-Distill-Qwen-1.5B", recipe="grpo-math-1B"),
        no(name="DeepScaleR-1.5B-Preview", purpose="serve"),
    ],
    cost="none seen: 27 840 tokens/s, with Inductor 27 420, eager 6 980 (H200, vLLM 0.26.0, Qwen3-1.7B shape, 256 requests)",
)
