"""Gemma-4: every layer scales its output by a persistent buffer, ``layer_scalar``, that many refits do not send.

What happens: after a dummy start and a refit of parameters, each layer nearly erases its input. A dummy load fills the buffer
with noise (-9.4e-4 where the checkpoint has about 1). A refit that walks ``named_parameters()`` never sends it, because it is
no parameter, neither in vLLM nor in transformers. vLLM's loader accepts the buffer when it is sent.

What this changes: the quirk chooses the cheaper of two cures, sending the state dict. There are two exceptions. If the
configuration already loads the weights from the checkpoint, the quirk does nothing. If the user set ``refit.scope`` to
``parameters`` and left the load format open, the weights are loaded from the checkpoint.

When it can go: when vLLM's dummy load leaves such buffers alone, or its weight transfer refuses to finish without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import ModelFlag, Quirk, Require, Severity, model_type, no, purpose, report, typed, unknown, yes
from quirks_plugins.conditions import dummy_weights, insists_on_parameters, only_parameters

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

_insists = insists_on_parameters & ~typed("engine.load_format")
_OPEN = {"engine.load_format": "dummy", "refit.scope": "parameters"}

QUIRK = Quirk(
    id="gemma4-layer-scalar",
    title="Dummy weights overwrite Gemma-4's layer_scalar buffers, and a refit of parameters does not restore them",
    flag=ModelFlag.WEIGHT_SYNC,
    match=model_type("gemma4", "gemma4_text", "gemma4_unified") & purpose("rollout") & dummy_weights & only_parameters,
    adjustments=[
        Require(
            "refit.scope",
            "state_dict",
            remedy="send the state dict (refit.scope=state_dict), or load the checkpoint (engine.load_format=auto)",
            when=~_insists,
        ),
        Require(
            "engine.load_format",
            "auto",
            reason="layer_scalar comes from the checkpoint, because refits send parameters only",
            when=_insists,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/issues/19788"),
        report("https://github.com/NVIDIA-NeMo/RL/issues/2631"),
    ],
    examples=[
        yes("gemma4", defaults=_OPEN, gives={"refit.scope": "state_dict"}),
        yes("gemma4_text", {"engine.load_format": "dummy"}, defaults=_OPEN, gives={"refit.scope": "state_dict"}),
        yes("gemma4_unified", {"refit.scope": "parameters"}, defaults=_OPEN, gives={"engine.load_format": "auto"}),
        yes("gemma4", _OPEN, refuses=["refit.scope=state_dict", "engine.load_format=auto"]),
        no("gemma4", {"engine.load_format": "auto", "refit.scope": "parameters"}),
        no("gemma4", {"refit.scope": "state_dict"}, defaults=_OPEN),
        no("gemma4", _OPEN, purpose="eval"),
        no("gemma4", _OPEN, purpose="serve"),
        no("gemma3", _OPEN),
        unknown(settings=_OPEN),
    ],
    cost="one scalar per layer more in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the trainer's weights generates what the trainer's model does."""
    model = lab.checkpoint("gemma4")
    trainer = lab.trainer(model)
    async with lab.worker(model) as worker:
        await worker.refit_async(trainer)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
