"""Apertus: the activation's constants ``beta`` and ``eps`` are lost by a refit that sends parameters only.

What happens: after such a refit the constants hold whatever was in memory, also if the engine had loaded them from the
checkpoint. xIELU keeps two constants as persistent buffers next to two parameters. Since 0.16.0 vLLM's layerwise reload
re-creates all of a module's tensors without initialising them as soon as one of its weights arrives. It then copies back every
persistent one, also those that were not sent.

What this changes: ``refit.scope`` must be ``state_dict``. No other adjustment helps, because the buffers must be sent.

When it can go: when layerwise reload keeps the old values of persistent buffers that were not sent, as it does for
non-persistent ones since vllm-project/vllm#44371.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import (
    Affected,
    ModelFlag,
    Quirk,
    Require,
    Severity,
    SymbolProbe,
    model_type,
    no,
    purpose,
    report,
    unknown,
    yes,
)

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

QUIRK = Quirk(
    id="apertus-xielu-buffers",
    title="A refit of parameters destroys the constants beta and eps of Apertus' xIELU activation",
    flag=ModelFlag.WEIGHT_SYNC,
    match=model_type("apertus") & purpose("rollout"),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Require("refit.scope", "state_dict"),
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/vllm-project/vllm/pull/44371"),
    evidence=SymbolProbe(
        "vllm.model_executor.model_loader.reload.layerwise:initialize_layerwise_reload", present_means_affected=True
    ),
    examples=[
        yes("apertus", vllm="0.32.0", defaults={"refit.scope": "parameters"}, gives={"refit.scope": "state_dict"}),
        yes("apertus", {"engine.load_format": "auto"}, vllm="0.32.0", gives={"refit.scope": "state_dict"}),
        yes("apertus", {"refit.scope": "state_dict"}, vllm="0.32.0", gives={}),
        yes("apertus", {"refit.scope": "parameters"}, vllm="0.32.0", refuses=["refit.scope", "set it to 'state_dict'"]),
        no("apertus", vllm="0.15.1"),
        no("apertus", vllm="0.32.0", purpose="serve"),
        no("llama", vllm="0.32.0"),
        unknown("apertus"),
    ],
    cost="two scalars per layer more in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """A refit of the weights that the engine has already changes nothing."""
    # vLLM keeps xIELU in bfloat16, so the engine is its own reference.
    model = lab.checkpoint("apertus")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        before = await lab.greedy(worker)
        await worker.refit_async(lab.trainer(model))
        return lab.same_tokens(
            await lab.greedy(worker), before, "greedy tokens equal to those before a refit of the same weights"
        )
