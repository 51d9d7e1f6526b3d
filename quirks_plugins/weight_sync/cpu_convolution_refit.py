"""Models with Mamba-2 layers in bfloat16 on vLLM's CPU platform: a refit does not reach their convolutions.

What happens: after a refit the engine generates with the new weights and the convolutions of the first ones. Nothing fails. On
a CPU with AVX-512 BF16 none of 72 greedy tokens of a tiny Nemotron-H agreed with an engine that started from the new weights.
There vLLM packs the weight of each convolution of width 4 for another model's kernel and puts it into new memory
(``vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm``; until 0.28 on CPUs with AMX alone). The mixer reads
``conv_weights``, a view of the memory that the weight had before (``MambaMixer2.__init__``). A reload copies the new weights
into the packed tensor alone. In float32 nothing is packed, and a refit reaches both.

When it can go: when the mixer takes the view from the weight whenever it computes, or vLLM does not pack what is read plain.
"""

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, package, platform, purpose, setting
from quirks_plugins.conditions import NOT_BFLOAT16
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="cpu-convolution-refit",
    title="A refit in bfloat16 on vLLM's CPU platform leaves Mamba-2 layers the convolutions that they started with",
    match=platform("cpu")
    & Fact("platform.cpu.avx512_bf16").is_true()
    & (package("vllm", introduced="0.29.0") | Fact("platform.cpu.amx").is_true())  # before 0.29 vLLM packs them on AMX alone
    & purpose("rollout")
    & model_type("falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2")
    & ~setting("engine.dtype").one_of(*NOT_BFLOAT16),
    affected=Affected("vllm", introduced="0.27.0"),
    adjustments=Patch(
        "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        wrapper="quirks_plugins.weight_sync.cpu_refit_patches:wrap_dispatch",
        expects=("0940331a5d3b", "2328614fed6a", "361a17d1606d", "83c37c89a715", "d0cc00dbd80c"),
        reason="vLLM packs the convolution into other memory than the mixer reads",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/47641"), report("vllm-project/vllm#55087")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.mamba.mamba_mixer2", r'self\.register_buffer\("conv_weights", conv_weights'
    ),
    examples=[
        yes("mamba2", vllm="0.27.0", platform="cpu", cpu="amx"),
        no("mamba2", vllm="0.28.0", platform="cpu", cpu="avx512_bf16"),
        yes("nemotron_h", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx512_bf16"),
        no("nemotron_h", {"engine.dtype": "float32"}, vllm="0.32.0", platform="cpu", cpu="avx512_bf16"),
        no("mamba2", vllm="0.32.0", platform="cuda"),
        no("mamba2", vllm="0.32.0", platform="cpu", cpu="avx512_bf16", purpose="serve"),
        unknown("mamba2", vllm="0.32.0", platform="cpu"),
    ],
    cost="one more copy of each convolution in memory, and in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """An engine in bfloat16 generates after a refit what one generates that starts from the same weights."""
    second = lab.checkpoint("mamba2", seed=1)
    values = {"engine": {"load_format": "auto", "dtype": "bfloat16"}}
    async with lab.worker(second, values) as worker:
        expected = await lab.greedy(worker)
    async with lab.worker(lab.checkpoint("mamba2"), values) as worker:
        await worker.refit_async(lab.trainer(second))
        return lab.same_tokens(await lab.greedy(worker), expected, "greedy tokens equal to those of a new engine")
