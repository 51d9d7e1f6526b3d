"""Models with attention sinks: a refit leaves the sinks at their old values.

What happens: logprobs of rollouts drift away from the trainer's with every update, or are wrong from the first one on after a
dummy start; there is no error. gpt-oss and MiMo-V2 copy their sinks into the parameter themselves (``param.data.copy_`` in
``load_weights``) instead of calling ``param.weight_loader``. During vLLM's layerwise reload the parameter is a meta tensor
without values, and vLLM repeats only calls of weight loaders: the copy is lost. DeepSeek-V4 and HY-V4 have the same defect in
separate files for each kind of GPU, and pad their sinks, so they are not patched.

When it can go: when vLLM 0.32 is no longer supported. From 0.33.0 on these models make their sinks with
``make_attention_sink``, which has a weight loader. The paired run uses gpt-oss; for MiMo-V2 a tiny model was reloaded without
an engine.
"""

from quirks_core import Advise, Affected, Patch, Quirk, Require, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, purpose
from quirks_plugins.kit import Lab, Outcome

_WRAPPER = "quirks_plugins.weight_sync.direct_write_patches:wrap_sink_load"
_REASON = "it copies attention sinks past their weight loader, and a layerwise reload repeats only what goes through it"
#: The language model of MiMo-V2-Omni is MiMo-V2.
_mimo = model_type("mimo_v2", "mimo_v2_flash") | Fact("model.architectures").any_in("MiMoV2OmniForCausalLM")
_unpatched = model_type("deepseek_v4", "deepseek_v41", "hy_v4")

QUIRK = Quirk(
    id="attention-sink-refit",
    title="A refit leaves attention sinks at their old values",
    match=(model_type("gpt_oss") | _mimo | _unpatched) & purpose("rollout"),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.33.0"),
    adjustments=[
        Patch(
            "vllm.model_executor.models.gpt_oss:GptOssModel.load_weights",
            wrapper=_WRAPPER,
            expects=("038486975f95", "a784ca15a78c"),
            reason=_REASON,
            when=model_type("gpt_oss"),
        ),
        Patch(
            "vllm.model_executor.models.mimo_v2:MiMoV2Model.load_weights",
            wrapper=_WRAPPER,
            expects=("7b7701a679ac", "1fdc05018f8c", "b776d0d4a9f1"),
            reason=_REASON,
            when=_mimo,
        ),
        Require(
            "engine.load_format",
            "auto",
            instead_of="dummy",
            reason="attention sinks come from the checkpoint, because refits do not reach them",
            when=_unpatched,
        ),
        Advise(
            "refits do not reach this model's attention sinks before vLLM 0.33.0: they stay what they are in the checkpoint; "
            "right as long as the trainer does not train them",
            when=_unpatched,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/57795"),
        report("vllm-project/vllm/pull/57798"),
        report("vllm-project/vllm/pull/57803"),
        report("vllm-project/vllm/pull/57804"),
        report("vllm-project/vllm/pull/57805"),
        report("vllm-project/vllm-ascend/pull/16958"),
    ],
    evidence=StaticProbe("vllm.model_executor.models.gpt_oss", r'"sinks" in name:'),
    examples=[
        yes("gpt_oss", vllm="0.32.0", patches="GptOssModel.load_weights"),
        yes("mimo_v2_flash", vllm="0.32.0", patches="MiMoV2Model.load_weights"),
        yes({"architectures": ["MiMoV2OmniForCausalLM"]}, vllm="0.32.0", patches="MiMoV2Model.load_weights"),
        yes("hy_v4", vllm="0.32.0", gives={"engine.load_format": "auto"}, advises="do not reach"),
        yes("hy_v4", {"engine.load_format": "dummy"}, vllm="0.32.0", refuses="engine.load_format", advises="do not reach"),
        no("gpt_oss", vllm="0.33.0"),
        no("gpt_oss", vllm="0.32.0", purpose="serve"),
        no("qwen3_moe", vllm="0.32.0"),
        unknown("gpt_oss"),
    ],
    cost="microseconds per tensor in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the weights of two trainers, one after the other, has the second one's logprobs."""
    model = lab.checkpoint("gpt_oss")
    second = lab.trainer(lab.checkpoint("gpt_oss", seed=1))
    async with lab.worker(model) as worker:
        await worker.refit_async(lab.trainer(model))
        await worker.refit_async(second)
        got = await lab.greedy(worker)
    return lab.close_logprobs(got, lab.rescored(second, got))
