"""Latent attention on a CPU with AMX: vLLM's kernels take only bfloat16, and only the weights that the engine started with.

What happens: since vLLM 0.29.0 the CPU platform gives models with latent attention (DeepSeek-V2 and V3, Moonlight,
GLM-4.7-Flash) the backend ``AMX_MLA`` wherever the CPU has AMX, whatever the dtype
(``vllm.platforms.cpu:CpuPlatform.get_attn_backend_cls``). In float32 the engine does not start: "expect weight to be
bfloat16". In float16 it starts and generates nonsense: no greedy token of a tiny DeepSeek-V3 agreed with transformers. In
bfloat16 the first refit fails half-way: the backend packs ``kv_b_proj`` once and replaces it by an empty tensor
(``MLAAttention.process_weights_after_loading``), into which no weights can be loaded.

When it can go: when the backend takes the other dtypes and updates, or when vLLM chooses ``CPU_MLA`` where it does not.
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, platform, purpose, setting
from quirks_plugins.conditions import NOT_BFLOAT16, checkpoint_dtype, latent_attention
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import MOONLIGHT

_SLOT, _BACKEND = "engine.attention_backend", "CPU_MLA"
_FLOAT16 = {**MOONLIGHT, "dtype": "float16"}
_dtype = setting("engine.dtype")
# vLLM's ``auto`` turns float32 into bfloat16, and keeps float16.
_not_bfloat16 = _dtype.one_of(*NOT_BFLOAT16) | (checkpoint_dtype("float16") & ~_dtype.one_of("bfloat16"))
_names = (_BACKEND, _BACKEND.lower())  # vLLM takes both
_chosen = setting(_SLOT).one_of(*_names) | setting("engine.attention_config.backend").one_of(*_names)

QUIRK = Quirk(
    id="cpu-amx-mla",
    title="On a CPU with AMX, vLLM's latent attention takes no dtype but bfloat16, and no refit",
    match=platform("cpu")
    & Fact("platform.cpu.amx").is_true()
    & latent_attention
    & (purpose("rollout") | _not_bfloat16)
    & ~_chosen,
    affected=Affected("vllm", introduced="0.29.0"),
    adjustments=Require(
        _SLOT,
        _BACKEND,
        reason="the AMX kernels of vLLM's latent attention take no dtype but bfloat16, and no refit",
    ),
    severity=Severity.CRASH,
    crash="expect weight to be bfloat16",
    references=[report("vllm-project/vllm/pull/52616"), report("vllm-project/vllm/pull/49453")],
    evidence=StaticProbe("vllm.platforms.cpu", r"if amx_available and selected_backend != AttentionBackendEnum\.CPU_MLA:"),
    examples=[
        yes(MOONLIGHT, vllm="0.32.0", platform="cpu", cpu="amx", gives={_SLOT: _BACKEND}),
        yes(MOONLIGHT, {_SLOT: "AMX_MLA"}, vllm="0.32.0", platform="cpu", cpu="amx", refuses=_SLOT),
        yes(MOONLIGHT, {"engine.dtype": "float32"}, vllm="0.32.0", platform="cpu", cpu="amx", purpose="eval"),
        yes(_FLOAT16, vllm="0.32.0", platform="cpu", cpu="amx", purpose="serve"),
        no(_FLOAT16, {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="amx", purpose="serve"),
        no(MOONLIGHT, vllm="0.32.0", platform="cpu", cpu="amx", purpose="serve"),
        no(MOONLIGHT, {"engine.attention_config": {"backend": _BACKEND}}, vllm="0.32.0", platform="cpu", cpu="amx"),
        no(MOONLIGHT, {_SLOT: "cpu_mla"}, vllm="0.32.0", platform="cpu", cpu="amx"),
        no(MOONLIGHT, vllm="0.28.1", platform="cpu", cpu="amx"),
        no(MOONLIGHT, vllm="0.32.0", platform="cuda"),
        no("qwen3", vllm="0.32.0", platform="cpu", cpu="amx"),
        unknown(MOONLIGHT, vllm="0.32.0", platform="cpu"),
    ],
    cost="vLLM's reference kernels for latent attention, which are not written for speed",
)


async def scenario(lab: Lab) -> Outcome:
    """A float32 rollout generates after a refit what the trainer does."""
    trainer = lab.trainer(lab.checkpoint("deepseek_v3", seed=1))
    async with lab.worker(lab.checkpoint("deepseek_v3")) as worker:
        await worker.refit_async(trainer)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
