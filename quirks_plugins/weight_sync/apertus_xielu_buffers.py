"""Apertus: the activation's constants ``beta`` and ``eps`` are lost by a refit that sends parameters only.

What happens: after such a refit the constants hold whatever was in memory, also if the engine had loaded them from the
checkpoint. xIELU keeps two constants as persistent buffers next to two parameters. Since 0.16.0 vLLM's layerwise reload
re-creates all of a module's tensors without initialising them as soon as one of its weights arrives. The paired run is of our
own worker. In vLLM's own engine on the CPU the constants stay, and yet samples differ after a reload; we do not know why.

When it can go: when layerwise reload keeps the old values of persistent buffers that were not sent, as it does for
non-persistent ones since vllm-project/vllm#44371.
"""

from quirks_core import Affected, Patch, Quirk, Require, Severity, SymbolProbe, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import dummy_weights, our_worker
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import OURS
from quirks_plugins.weight_sync.gemma4_layer_scalar import constants_from_checkpoint

_LOADED, _PATCHED = "DummyModelLoader.load_weights", "_layerwise_process"

QUIRK = Quirk(
    id="apertus-xielu-buffers",
    title="A refit of parameters destroys the constants beta and eps of Apertus' xIELU activation",
    match=model_type("apertus") & purpose("rollout"),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=[
        Patch(
            "vllm.model_executor.model_loader.reload.layerwise:_layerwise_process",
            wrapper="quirks_plugins.weight_sync.partial_layer_patches:wrap_process_with_buffers",
            expects=("4932d500de0e", "58c5e736d6c7", "c83b72815750", "c233a11758d5"),
            reason="buffers that are not sent stay uninitialised memory if their module's parameters are sent",
        ),
        constants_from_checkpoint(when=dummy_weights),
        Require("refit.scope", "state_dict", when=our_worker),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/44371"),
    evidence=SymbolProbe(
        "vllm.model_executor.model_loader.reload.layerwise:initialize_layerwise_reload", present_means_affected=True
    ),
    examples=[
        yes("apertus", {"engine.load_format": "dummy"}, vllm="0.32.0", patches=[_LOADED, _PATCHED]),
        yes("apertus", OURS, vllm="0.32.0", patches=_PATCHED, gives={"refit.scope": "state_dict"}),
        yes("apertus", {**OURS, "refit.scope": "parameters"}, vllm="0.32.0", patches=_PATCHED, refuses="'state_dict'"),
        no("apertus", vllm="0.15.1"),
        no("apertus", vllm="0.32.0", purpose="serve"),
        unknown("apertus"),
    ],
    cost="at start, reads two numbers per layer of the checkpoint; in each refit, copies them",
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
