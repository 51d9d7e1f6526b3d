"""DeepScaleR recipes: CUDA graphs hurt convergence.

What happens: training curves of DeepScaleR fall behind when rollouts run with CUDA graphs.

What this changes: eager execution by default; a recipe that sets ``engine.enforce_eager`` itself wins.

When it can go: upstream no longer uses it for these recipes (NVIDIA-NeMo/RL#3097, with ``compilation_config`` set to the eager
backend instead); nobody has shown which vLLM change made it superfluous. It is a default, not a requirement, for that reason.

Evidence: training curves in the references; not reproduced by us.
"""

from __future__ import annotations

from quirks_core import Default, Fact, ModelFlag, Quirk, Severity, model_name, no, purpose, report, yes

QUIRK = Quirk(
    id="deepscaler-eager",
    title="DeepScaleR converges worse when rollouts run with CUDA graphs",
    flag=ModelFlag.ENFORCE_EAGER,
    match=purpose("rollout") & (model_name("deepscaler") | Fact("recipe").matches("deepscaler")),
    adjustments=Default("engine.enforce_eager", True),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/NVIDIA-NeMo/RL/pull/857"),
        report("https://github.com/NVIDIA-NeMo/RL/issues/186"),
    ],
    examples=[
        yes(name="DeepScaleR-1.5B-Preview"),
        yes(recipe="grpo-deepscaler-1.5b-8K"),
        no(name="Qwen3-1.7B"),
        no(name="DeepScaleR-1.5B-Preview", purpose="serve"),
    ],
    cost="10 980 instead of 31 440 tokens/s (H200, vLLM 0.26.0, a Qwen3-1.7B shape, 256 requests)",
)
