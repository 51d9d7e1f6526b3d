"""Trainers that load weights into a running model: on vLLM's CPU platform the first weight update fails.

What happens: the first weight update raises ``AttributeError`` at the first linear layer. A trainer that has vLLM in its own
process (TRL's colocate mode, online DPO) calls ``load_weights`` of the running model, once for each tensor. On GPUs that
overwrites the weights in place. vLLM's CPU platform packs the weight of each linear layer for its kernels after the first
load, and replaces the weight itself by an empty tensor that has no ``weight_loader`` (since 0.10.2, vllm-project/vllm#24150).
An embedding would be overwritten, but a head that shares it keeps its packed copy. Where oneDNN has no product of the
engine's dtype for the CPU (bfloat16 without AVX-512, float16 without AVX-512 FP16), vLLM packs nothing, and the update works.
Linux does not show whether an AVX2 CPU with AVX-VNNI has such products, so the quirk stays active there.

What this changes: ``load_weights`` of a running model uses vLLM's own layerwise reload, which restores, loads and packs each
layer. The first call opens the reload, the next forward pass closes it, or the next update: a tensor comes again whose layer
was complete. Calls inside a reload that other code has opened (``reload_weights``, a weight transfer) work as before. A trainer
must send all parts of a fused layer (q, k and v; gate and up) before the next request; otherwise the request fails with the
names of those layers, because the old values are gone. The quirk is a patch, because no setting keeps the weights unpacked.

When it can go: when vLLM's CPU platform supports ``load_weights`` after the first load. We found no report of it for the CPU
platform; vllm-project/vllm#34201 is the same error from ``reload_weights`` of an older vLLM. Layerwise reload exists since
0.16.0; the patch is written for 0.26.0 and later.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, StaticProbe, no, platform, purpose, report, unknown, yes
from quirks_plugins.conditions import unpacked_on_cpu

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from quirks_core.hook.in_force import PlanInForce
    from worker.lab.kit.lab import Generated, Lab, Outcome

QUIRK = Quirk(
    id="cpu-load-into-live-model",
    title="vLLM's CPU platform cannot take weights that a trainer loads into the running model",
    flag=ModelFlag.RUNTIME,  # a refit through vLLM's own reload does not need it
    match=platform("cpu") & purpose("rollout") & ~unpacked_on_cpu,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
        wrapper="quirks_plugins.runtime.cpu_live_load_patches:wrap_load_model",
        expects=("5c00f43731f8", "b95fd04df01f", "ee1975c78da7", "939e4d07443b", "8579297b4f00", "39c27f400e70"),
        reason="vLLM packs linear weights for its CPU kernels and drops the tensors that load_weights writes to",
    ),
    severity=Severity.CRASH,
    crash=r"AttributeError: 'Parameter' object has no attribute 'weight_loader'",
    references=[
        report("https://github.com/vllm-project/vllm/pull/24150"),
        report("https://github.com/vllm-project/vllm/issues/34201"),
        report("https://github.com/vllm-project/vllm/issues/5723"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.utils",
        r"if remove_weight:\s+layer\.weight = torch\.nn\.Parameter\(",
        found_means_affected=True,
    ),
    examples=[
        yes("qwen3", vllm="0.32.0", platform="cpu"),
        yes({"model_type": "qwen3_moe", "num_experts": 8}, vllm="0.16.0", platform="cpu"),
        yes("qwen3", {"engine.dtype": "float32"}, vllm="0.32.0", platform="cpu", cpu="avx2"),
        yes("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx512"),
        yes("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx_vnni"),
        no("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx2"),
        no("qwen3", {"engine.dtype": "float16"}, vllm="0.32.0", platform="cpu", cpu="avx512_bf16"),
        no({"model_type": "qwen3", "dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx2"),
        unknown("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu"),
        no("qwen3", vllm="0.32.0", platform="cuda"),
        no("qwen3", vllm="0.32.0", platform="cpu", purpose="serve"),
        no("qwen3", vllm="0.32.0", platform="cpu", purpose="eval"),
        no("qwen3", vllm="0.15.1", platform="cpu"),
        unknown("qwen3", platform="cpu"),
    ],
    cost="nothing until a trainer calls load_weights; then one copy of each tensor, and the packing",
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that got the weights of two trainers, one after the other, generates what the second one does.

    What TRL does, in plain vLLM: ``LLM(...)`` in this process, and one call of the running model's ``load_weights`` per tensor.
    """
    from quirks_core.hook.in_force import in_force

    model = lab.checkpoint("qwen3")
    trainers = [lab.trainer(lab.checkpoint("qwen3", seed=seed)) for seed in (1, 2)]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with in_force(lab.plan(model, {"engine": {"load_format": "auto"}})) as applied:
        llm = _engine(model, applied)
        for trainer in trainers:
            _load(llm, trainer.named_parameters())
            got = _greedy(llm)
    return lab.same_tokens(got, lab.reference(trainers[-1]))


def _engine(model: Path, applied: PlanInForce) -> Any:
    from vllm import LLM, EngineArgs

    arguments = EngineArgs(str(model), dtype="float32", enforce_eager=True, max_model_len=256)
    return LLM.from_engine_args(applied.carried_by(arguments))


def _load(llm: Any, weights: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
    running = llm.llm_engine.model_executor.driver_worker.model_runner.model
    for name, weight in weights:
        running.load_weights([(name, weight.data)])
    llm.reset_prefix_cache()


def _greedy(llm: Any) -> list[Generated]:
    from vllm import SamplingParams

    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS, Generated

    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    rows = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in PROMPTS], sampling, use_tqdm=False)
    return [Generated(tuple(row.outputs[0].token_ids), ()) for row in rows]
