"""Qwen3-Next and Qwen3.5 on vLLM's CPU platform: the kernel of the linear attention accepts only bfloat16.

What happens: the first request ends the engine with "AssertionError: CPU GDN attention requires BF16"
(``vllm.model_executor.layers.mamba.ops.cpu.gdn_attention``), whenever the engine computes in float32 or float16. Until then
the engine loads the model and starts normally. The user need not set a dtype for this to happen:
``float32-checkpoint-downcast`` chooses float32 for rollouts of a float32 checkpoint. Since vLLM 0.33.0 float16 works if
triton-cpu is installed; float32 never does.

When it can go: when the kernel accepts float32.
"""

from quirks_core import Affected, Kind, Quirk, Require, Severity, StaticProbe, model_type, no, platform, report, unknown, yes
from quirks_plugins.conditions import NOT_BFLOAT16
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="cpu-gdn-bfloat16",
    title="The gated delta net of Qwen3-Next and Qwen3.5 needs bfloat16 on vLLM's CPU platform",
    kind=Kind.RULE,
    match=platform("cpu") & model_type("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Require(
        "engine.dtype",
        "bfloat16",
        instead_of=NOT_BFLOAT16,
        reason="the kernel of the gated delta net on vLLM's CPU platform takes no other dtype",
    ),
    severity=Severity.CRASH,
    crash="CPU GDN attention requires BF16",
    references=[report("llmmanorg/llmman/pull/285"), report("vllm-project/vllm#51305")],
    evidence=StaticProbe("vllm.model_executor.layers.mamba.ops.cpu.gdn_attention", r"CPU GDN attention requires BF16"),
    examples=[
        yes("qwen3_5", vllm="0.32.0", platform="cpu", defaults={"engine.dtype": "auto"}, gives={"engine.dtype": "bfloat16"}),
        yes("qwen3_next", {"engine.dtype": "float32"}, vllm="0.32.0", platform="cpu", refuses="engine.dtype"),
        no("qwen3_next", vllm="0.32.0", platform="cuda"),
        unknown("qwen3_next", vllm="0.32.0"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout for a trainer in float32 generates all its tokens."""
    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS

    model = lab.checkpoint("qwen3_next")
    values = {"engine": {"load_format": "auto", "dtype": None}, "train": {"dtype": "float32"}}
    async with lab.worker(model, values) as worker:
        made = sum(len(row.tokens) for row in await lab.greedy(worker))
    wanted = NEW_TOKENS * len(PROMPTS)
    return Outcome(made == wanted, "tokens generated", str(made), str(wanted))
