"""FlashInfer's CUTLASS kernel for experts in a rollout: each refit moves constants that CUDA graphs have captured.

What happens: after a refit, rollouts of gpt-oss become garbage now and then. It depends on what other code has written into
the memory that the graphs still read. The constants of the kernel's activation (``gemm1_alpha``, ``gemm1_beta``,
``gemm1_clamp_limit``) and a scale (``fake_input_scale``) are plain tensors that ``FlashInferExperts`` creates in its
constructor. Every update makes a new object, but the CUDA graphs were captured with the addresses of the old tensors.

What this changes: ``engine.moe_backend=flashinfer_cutlass`` is refused for a rollout of gpt-oss with CUDA graphs. The plan
proposes triton, which has no such constants.

When it can go: when vLLM keeps these tensors, as vllm-project/vllm#50521 does. In its figures, a reload on an H100 moved 72 of
72 of them without that change, and none with it. vLLM 0.26.0 to 0.33.0 create them anew. The defect shows only on a GPU with
CUDA graphs; the static probe looks at the constructor.
"""

from __future__ import annotations

from quirks_core import (
    Affected,
    ModelFlag,
    Quirk,
    Require,
    Severity,
    StaticProbe,
    model_type,
    no,
    platform,
    purpose,
    report,
    setting,
    unknown,
    yes,
)

_BACKEND = "engine.moe_backend"
_CUTLASS = {_BACKEND: "flashinfer_cutlass"}

QUIRK = Quirk(
    id="cutlass-constants-refit",
    title="A refit frees constants of FlashInfer's CUTLASS experts that captured CUDA graphs still read",
    flag=ModelFlag.MOE_BACKEND,
    match=model_type("gpt_oss")
    & platform("cuda")
    & purpose("rollout")
    & setting(_BACKEND).matches("^flashinfer_cutlass")
    & ~setting("engine.enforce_eager").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),  # of older releases nobody looked
    adjustments=Require(
        _BACKEND,
        "triton",
        remedy="set engine.moe_backend: triton (or leave it open), or engine.enforce_eager: true",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/pull/50521"),
        report("https://github.com/vllm-project/vllm/issues/48312"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.experts.flashinfer_cutlass_moe",
        r"def __init__\([^)]*\):(?:(?!\n    def )[\s\S])*self\.gemm1_alpha = ",
        found_means_affected=True,
    ),
    examples=[
        yes("gpt_oss", _CUTLASS, vllm="0.32.0", platform="cuda", refuses=_BACKEND),
        no("gpt_oss", {_BACKEND: "triton"}, vllm="0.32.0", platform="cuda"),
        no("gpt_oss", {**_CUTLASS, "engine.enforce_eager": True}, vllm="0.32.0", platform="cuda"),
        no("gpt_oss", _CUTLASS, vllm="0.32.0", platform="cuda", purpose="serve"),
        no("gpt_oss", vllm="0.32.0", platform="cuda"),
        no("gpt_oss", _CUTLASS, vllm="0.32.0", platform="cpu"),
        no("qwen3_moe", _CUTLASS, vllm="0.32.0", platform="cuda"),
        unknown("gpt_oss", _CUTLASS, platform="cuda"),
    ],
    cost="the difference between the two kernels",
)
