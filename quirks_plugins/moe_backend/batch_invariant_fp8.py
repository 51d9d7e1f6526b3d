"""``VLLM_BATCH_INVARIANT=1`` with experts that vLLM makes FP8: answers still depend on the other requests of a batch.

What happens: a trainer that relies on it gets other greedy tokens for the same prompt, within the first ten positions. Experts
of ``quantization: fp8`` get one scale for the activations of the whole batch, the largest of all requests
(``Fp8PerTensorOnlineMoEMethod``); linear layers have one for each token. From 0.33.0 on experts have, too.

When it can go: when vLLM 0.32 is no longer supported. Read in 0.26.0, 0.28.0, 0.31.0, 0.32.0 and 0.33.0; the report is of
0.27.1 on an RTX 4090 and an H100. Our parity profile sets the variable, and does not quantise.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, environment, no, report, setting, unknown, yes
from quirks_plugins.conditions import mixture
from quirks_plugins.runs import QWEN3_MOE

_ON = {"VLLM_BATCH_INVARIANT": "1"}
_FP8 = {"engine.quantization": "fp8"}

QUIRK = Quirk(
    id="batch-invariant-fp8",
    title="Batch-invariant mode does not hold for experts that vLLM quantises to FP8",
    match=environment("VLLM_BATCH_INVARIANT").one_of("1")
    & mixture
    & setting("engine.quantization").matches("^fp8(_per_tensor)?$"),
    affected=Affected("vllm", introduced="0.26.0", fixed="0.33.0"),
    adjustments=Advise(
        "VLLM_BATCH_INVARIANT=1 does not hold for FP8 experts of this vLLM, whose activations share one scale over the "
        "batch: leave engine.quantization open, or install vLLM 0.33 or newer"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#57016"), report("vllm-project/vllm/pull/57092")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.quantization.online.fp8",
        r"kFp8DynamicTokenSym if envs\.VLLM_BATCH_INVARIANT",
        found_means_affected=False,
    ),
    examples=[
        yes(QWEN3_MOE, _FP8, env=_ON, vllm="0.32.0", advises="0.33"),
        no(QWEN3_MOE, _FP8, env=_ON, vllm="0.33.0"),
        no(QWEN3_MOE, _FP8, vllm="0.32.0"),
        no(QWEN3_MOE, env=_ON, vllm="0.32.0"),
        unknown(QWEN3_MOE, _FP8, env=_ON),
    ],
)
