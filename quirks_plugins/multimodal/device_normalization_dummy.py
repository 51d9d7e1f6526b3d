"""Vision models that start from dummy weights normalise images with random numbers, and no refit restores them.

What happens: in a rollout that started from dummy weights, every image reaches the vision tower as noise. Text is right, and no
error appears. From vLLM 0.28.0 on, Qwen2-VL and Qwen2.5-VL subtract the mean of an image and divide by its deviation on the
device, and from 0.32.0 on so do models like Qwen3-VL, GLM-4.5V, Kimi-K2.5 and Mistral Small; the default is on. The two factors
are persistent buffers of a module (``FusedInputNorm``, later ``FusedMMInputNorm``) and come from the processor's configuration,
not from the checkpoint. ``load_format: dummy`` overwrites all persistent buffers (``DummyModelLoader``), and no trainer sends
these two.

When it can go: with support for vLLM 0.32. In 0.33.0 neither factor is a persistent buffer. vLLM 0.27.0 has no such argument.
"""

import json

from quirks_core import Affected, Fact, Match, Quirk, Require, Severity, no, package, purpose, report, unknown, yes
from quirks_plugins.conditions import dummy_weights
from quirks_plugins.kit import Lab, Outcome

_SLOT, _LOAD = "engine.mm_device_do_normalize", "engine.load_format"
_DUMMY = {_LOAD: "dummy"}
#: The architectures whose classes have ``supports_mm_device_do_normalize``, from these releases on.
_SINCE_28 = ("Exaone4_5_", "OpenCUA", "Qwen2VL", "Qwen2_5_VL")
_SINCE_32 = (
    *("Cosmos3", "Glm4v", "Glm4vMoe", "Glm5Next", "GlmOcr", "InternS1Pro", "InternS2Mobius", "InternS2Preview"),
    *("KimiK25", "KimiK3", "Mistral3", "Qwen3VL", "Qwen3VLMoe", "Qwen3_5", "Qwen3_5Moe", "Qwen4Exp"),
)


def _built(*names: str) -> Match:
    return Fact("model.architectures").any_in(*(f"{name}ForConditionalGeneration" for name in names))


_VISION = {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {"depth": 2}}
_QWEN3 = {"architectures": ["Qwen3VLForConditionalGeneration"], "vision_config": {"depth": 2}}

QUIRK = Quirk(
    id="device-normalization-dummy",
    title="Vision models that start from dummy weights normalise images with random numbers",
    match=purpose("rollout")
    & dummy_weights
    & (_built(*_SINCE_28) | (_built(*_SINCE_32) & package("vllm", introduced="0.32.0"))),
    affected=Affected("vllm", introduced="0.28.0", fixed="0.33.0"),
    adjustments=Require(
        _SLOT,
        False,
        reason="a dummy load overwrites the mean and deviation that the device would use, and no refit restores them",
        remedy=f"set {_SLOT}: false, or {_LOAD}: auto",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/50411"), report("vllm-project/vllm/pull/57531")],
    examples=[
        yes(_VISION, {**_DUMMY, _SLOT: True}, vllm="0.28.0", refuses=[_SLOT, _LOAD]),
        yes(_QWEN3, _DUMMY, vllm="0.32.0", gives={_SLOT: False}),
        no(_QWEN3, _DUMMY, vllm="0.31.0"),
        no(_VISION, {_LOAD: "auto"}, vllm="0.32.0"),
        no(_VISION, _DUMMY, vllm="0.32.0", purpose="eval"),
        no("qwen3", _DUMMY, vllm="0.32.0"),
        no(_VISION, _DUMMY, vllm="0.27.0"),
        no(_VISION, _DUMMY, vllm="0.33.0"),
        unknown(_VISION, _DUMMY),
    ],
    cost="the normalisation of images on the CPU",
)


async def scenario(lab: Lab) -> Outcome:
    """If the device normalises, its factors are those of the processor after a dummy load."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.model_loader.weight_utils import initialize_single_dummy_weight

    try:
        from vllm.model_executor.layers.fusion.mm_input_norm import FusedMMInputNorm as InputNorm
    except ImportError:  # until vLLM 0.30
        from vllm.model_executor.models.vision import FusedInputNorm as InputNorm

    model = lab.folder / "vision"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(_VISION), encoding="utf-8")
    plan, measure = (
        lab.plan(model, {"engine": {"load_format": "dummy"}}),
        "factors of the image normalisation after a dummy load",
    )
    if plan.value(_SLOT) is False:
        return Outcome(True, measure, "not on the device", "not on the device, or unchanged")
    with set_current_vllm_config(VllmConfig()):
        norm = InputNorm([0.5] * 3, [0.5] * 3, 1 / 255)
    before = norm.weight.clone()
    for buffer in norm.state_dict().values():  # as `DummyModelLoader.load_weights` does with a whole model
        initialize_single_dummy_weight(buffer)
    unchanged = torch.equal(norm.weight, before)
    return Outcome(unchanged, measure, f"{norm.weight[0]:.2g} instead of {before[0]:.2g}", "not on the device, or unchanged")
