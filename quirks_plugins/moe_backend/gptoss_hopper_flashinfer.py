"""``VLLM_USE_FLASHINFER_MOE_MXFP4_BF16=1`` with gpt-oss on Hopper (H100, H200): noise in place of text.

What happens: greedy answers are digits and punctuation, GPQA is 0, and nothing fails. The variable, which recipes for gpt-oss
set for speed, selects FlashInfer's CUTLASS kernel for MXFP4 weights with bfloat16 activations, and that of FlashInfer 0.6.11
computes wrong on capability 9.0. Without the variable the same engine is right.

When it can go: when vLLM 0.23 is no longer supported. Read in 0.18.0 (FlashInfer 0.6.6), 0.22.0 (0.6.11.post2, as in the
report) and 0.24.0 (0.6.12), which no longer reads the variable.

Evidence: the report, for a build between 0.20 and 0.21; not run by us.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, environment, model_type, no, report, unknown, yes

_VARIABLE, _CAPABILITY = "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "platform.gpu.capability"
_ON, _H100 = {_VARIABLE: "1"}, {_CAPABILITY: 90}

QUIRK = Quirk(
    id="gptoss-hopper-flashinfer",
    title="FlashInfer's MXFP4 kernel for gpt-oss computes wrong on Hopper",
    match=model_type("gpt_oss") & environment(_VARIABLE).one_of("1") & Fact(_CAPABILITY).one_of(90),
    affected=Affected("vllm", introduced="0.21.0", fixed="0.24.0"),
    adjustments=Advise(f"the kernel that {_VARIABLE}=1 selects returns noise for gpt-oss on this GPU: unset {_VARIABLE}"),
    severity=Severity.WRONG_OUTPUT,
    references=report("flashinfer-ai/flashinfer#3334"),
    examples=[
        yes("gpt_oss", vllm="0.22.0", env=_ON, platform="cuda", extra=_H100, advises=_VARIABLE),
        yes("gpt_oss", vllm="0.23.0", env=_ON, platform="cuda", extra=_H100, purpose="serve"),
        no("gpt_oss", vllm="0.22.0", env=_ON, platform="cuda", extra={_CAPABILITY: 100}),
        no("gpt_oss", vllm="0.22.0", env={_VARIABLE: "0"}, platform="cuda", extra=_H100),
        no("gpt_oss", vllm="0.24.0", env=_ON, platform="cuda", extra=_H100),
        unknown("gpt_oss", env=_ON, platform="cuda", extra=_H100),
    ],
)
