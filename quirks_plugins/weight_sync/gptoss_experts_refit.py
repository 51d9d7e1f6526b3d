"""gpt-oss: a refit leaves every expert, weights and biases, at its old values.

What happens: after a weight update the policy is a mixture of two: attention, norms and router are new, but all experts keep
the values that the engine started with, or noise if it started from dummy weights. Nothing fails, and vLLM reports every
tensor as loaded. ``GptOssModel._load_weights_other`` copies the stacks of experts into their parameters itself
(``param.copy_``) instead of calling ``param.weight_loader``. During vLLM's layerwise reload those parameters are meta tensors
without values, and vLLM records and repeats only calls of weight loaders. The copies are lost, and the reload puts the old
experts back. From vLLM 0.29.0 on, a trainer that sends one tensor per expert (``experts.0.gate_up_proj``) is not affected.
Engines with quantised experts use other code: the code for MXFP4 calls the loaders and is not affected; the code for Quark was
not examined. The released checkpoints are MXFP4, and trainers that send bfloat16 weights clear that by ``hf_overrides:
{quantization_config: {}}``. Such an engine has unquantised experts and is affected. ``null`` in place of the empty mapping is
an error in the first load or refit (``load_weights`` looks for the method in it).

When it can go: when vLLM loads these tensors through their loaders. vllm-project/vllm#57795 describes the class of defect for
attention sinks (``attention-sink-refit``); vllm-project/vllm#57805 fixes those and deliberately does not fix the experts'
copies.
"""

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, StaticProbe, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import quantized
from quirks_plugins.kit import Lab, Outcome

_MXFP4 = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
_OVERRIDES = "engine.hf_overrides"

QUIRK = Quirk(
    id="gptoss-experts-refit",
    title="A refit leaves all experts of gpt-oss at their old values",
    flag=ModelFlag.WEIGHT_SYNC,
    match=model_type("gpt_oss") & purpose("rollout") & ~quantized,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.models.gpt_oss:GptOssModel.load_weights",
        wrapper="quirks_plugins.weight_sync.direct_write_patches:wrap_expert_load",
        expects=("038486975f95", "a784ca15a78c", "5d8aa524e4d6"),
        reason="it copies experts past their weight loaders, and a layerwise reload repeats only what goes through these",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/pull/57795"),
        report("https://github.com/vllm-project/vllm/pull/57805"),
    ],
    evidence=StaticProbe("vllm.model_executor.models.gpt_oss", r"param\.copy_\(narrow_weight\)\s+loaded_params\.add"),
    examples=[
        yes("gpt_oss", vllm="0.26.0"),
        yes("gpt_oss", vllm="0.33.0"),
        no("gpt_oss", vllm="0.15.1"),
        yes(_MXFP4, {_OVERRIDES: {"quantization_config": {}}}, vllm="0.32.0", patches="GptOssModel.load_weights"),
        no(_MXFP4, vllm="0.32.0"),
        no(_MXFP4, {_OVERRIDES: {"rope_theta": 1e4}}, vllm="0.32.0"),
        no("gpt_oss", vllm="0.32.0", purpose="serve"),
        no("qwen3_moe", vllm="0.32.0"),
        unknown("gpt_oss"),
    ],
    cost="microseconds per tensor in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the weights of two trainers, one after the other, generates what the second one does."""
    from quirks_plugins.model_config.evidence import edited

    # As it is released, and as trainers start it.
    model = edited(lab, "gpt_oss", "mxfp4", {"quantization_config": {"quant_method": "mxfp4"}})
    first, second = (lab.trainer(lab.checkpoint("gpt_oss", seed=seed)) for seed in (0, 1))
    async with lab.worker(model, {"engine": {"hf_overrides": {"quantization_config": {}}}}) as worker:
        await worker.refit_async(first)
        await worker.refit_async(second)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(second))
