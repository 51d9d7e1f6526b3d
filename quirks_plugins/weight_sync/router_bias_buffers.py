"""MoE routers that choose experts by a bias: transformers keeps it in a buffer, which many refits do not send.

What happens: tokens go to other experts than in the trainer. Routers like DeepSeek-V3's add a bias, one number per expert
(``e_score_correction_bias``), to the scores by which they choose experts. The bias is balanced rather than trained by
gradients, so in transformers it is a persistent buffer, and a refit that walks ``named_parameters()`` never sends it. In vLLM
it is a parameter, and a reload does not change it until it is sent (vllm-project/vllm#38746). After a dummy start it is noise.
After a start from the checkpoint it keeps the checkpoint's value, however the trainer has balanced it since.

What this changes: the quirk chooses the cheaper of two cures, sending the state dict. If the user set ``refit.scope`` to
``parameters``, the weights come from the checkpoint instead, and the plan says that the bias stays at the checkpoint's value.

When it can go: when vLLM's weight transfer refuses to finish without such buffers. For each model type listed, transformers
5.19.0 was checked for the buffer and for its name in a checkpoint, and the source of vLLM 0.32.0 for the parameter of that
name. Ernie-4.5-MoE and Laguna have a parameter on both sides. deepspeedai/DeepSpeed#8369 shows that such a buffer is easily
lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import (
    Advise,
    ModelFlag,
    Quirk,
    Require,
    Severity,
    model_type,
    no,
    purpose,
    report,
    unknown,
    yes,
)
from quirks_plugins.conditions import insists_on_dummy_weights, insists_on_parameters, only_parameters

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

_from_checkpoint = insists_on_parameters & ~insists_on_dummy_weights
_OPEN = {"engine.load_format": "dummy", "refit.scope": "parameters"}

QUIRK = Quirk(
    id="router-bias-buffers",
    title="A refit of parameters leaves out the bias that MoE routers in the manner of DeepSeek-V3 choose experts by",
    flag=ModelFlag.WEIGHT_SYNC,
    match=model_type(
        "axk1",
        "deepseek_v3",
        "deepseek_v32",
        "exaone_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "glm4v_moe",
        "glm5_next",
        "glm_moe_dsa",
        "hy_v3",
        "hy_v4",
        "kimi_linear",
        "lfm2_moe",
        "longcat_flash",
        "mimo_v2_flash",
        "minimax_m2",
        "minimax_m3_vl",
        "nemotron_h",
    )
    & purpose("rollout")
    & only_parameters,
    adjustments=[
        Require(
            "refit.scope",
            "state_dict",
            remedy="send the state dict (refit.scope=state_dict), or load the checkpoint (engine.load_format=auto)",
            when=~_from_checkpoint,
        ),
        Require(
            "engine.load_format",
            "auto",
            reason="the router's bias comes from the checkpoint, because refits send parameters only",
            when=_from_checkpoint,
        ),
        Advise(
            "refits send parameters only, so the router's bias stays what it is in the checkpoint: "
            "right as long as the trainer does not balance it",
            when=_from_checkpoint,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/deepspeedai/DeepSpeed/pull/8369"),
        report("https://github.com/vllm-project/vllm/pull/38746"),
    ],
    examples=[
        yes("glm4_moe", defaults=_OPEN, gives={"refit.scope": "state_dict"}),
        yes("glm4_moe", {"engine.load_format": "auto"}, defaults=_OPEN, gives={"refit.scope": "state_dict"}),
        yes("glm4_moe", {"refit.scope": "parameters"}, gives={"engine.load_format": "auto"}, advises="does not balance it"),
        yes("deepseek_v3", _OPEN, refuses=["refit.scope=state_dict", "engine.load_format=auto"]),
        no("glm4_moe", {"refit.scope": "state_dict"}),
        no("glm4_moe", {"refit.scope": "parameters"}, purpose="serve"),
        no("qwen3_moe", {"refit.scope": "parameters"}),
        no("ernie4_5_moe", {"refit.scope": "parameters"}),
        unknown(settings={"refit.scope": "parameters"}),
    ],
    cost="one number per expert more in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that started from a checkpoint generates what the trainer's model does, which has been balanced since."""
    model = lab.checkpoint("glm4_moe")
    trainer = lab.trainer(model)
    for name, buffer in trainer.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.neg_().mul_(10)  # to about one, so that it decides: the scores are between 0 and 1
    # Not from dummy weights: a worker that checks what it is sent refuses to generate then, and says why.
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        await worker.refit_async(trainer)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
