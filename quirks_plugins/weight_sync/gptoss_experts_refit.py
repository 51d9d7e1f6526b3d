"""gpt-oss: a refit leaves every expert, weights and biases, at its old values.

What happens: after a weight update attention, norms and router are new, but all experts keep the values that the engine started
with, or noise after a dummy start. Nothing fails. ``GptOssModel._load_weights_other`` copies the stacks of experts into their
parameters itself (``param.copy_``). During vLLM's layerwise reload those parameters are meta tensors without values, and vLLM
repeats only calls of weight loaders: the copies are lost. From vLLM 0.29.0 on, a trainer that sends one tensor per expert is
not affected. The code for MXFP4 experts calls the loaders; that for Quark was not examined. Trainers that send bfloat16 weights
clear the released checkpoints' MXFP4 by ``hf_overrides: {quantization_config: {}}``, and are affected; ``null`` in its place is
an error in the first load.

When it can go: when vLLM loads these tensors through their loaders. vllm-project/vllm#57805 fixes attention sinks and
deliberately not the experts' copies.
"""

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import quantized
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited

_MXFP4 = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
_OVERRIDES = "engine.hf_overrides"

QUIRK = Quirk(
    id="gptoss-experts-refit",
    title="A refit leaves all experts of gpt-oss at their old values",
    match=model_type("gpt_oss") & purpose("rollout") & ~quantized,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.models.gpt_oss:GptOssModel.load_weights",
        wrapper="quirks_plugins.weight_sync.direct_write_patches:wrap_expert_load",
        expects=("038486975f95", "a784ca15a78c", "5d8aa524e4d6"),
        reason="it copies experts past their weight loaders, and a layerwise reload repeats only what goes through these",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/57795"), report("vllm-project/vllm/pull/57805")],
    evidence=StaticProbe("vllm.model_executor.models.gpt_oss", r"param\.copy_\(narrow_weight\)\s+loaded_params\.add"),
    examples=[
        no("gpt_oss", vllm="0.15.1"),
        yes(_MXFP4, {_OVERRIDES: {"quantization_config": {}}}, vllm="0.32.0", patches="GptOssModel.load_weights"),
        no(_MXFP4, {_OVERRIDES: {"rope_theta": 1e4}}, vllm="0.32.0"),
        no("gpt_oss", vllm="0.32.0", purpose="serve"),
        unknown("gpt_oss"),
    ],
    cost="microseconds per tensor in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the weights of two trainers, one after the other, generates what the second one does."""
    # As it is released, and as trainers start it.
    model = edited(lab, "gpt_oss", "mxfp4", {"quantization_config": {"quant_method": "mxfp4"}})
    first, second = (lab.trainer(lab.checkpoint("gpt_oss", seed=seed)) for seed in (0, 1))
    async with lab.worker(model, {"engine": {"hf_overrides": {"quantization_config": {}}}}) as worker:
        await worker.refit_async(first)
        await worker.refit_async(second)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(second))
