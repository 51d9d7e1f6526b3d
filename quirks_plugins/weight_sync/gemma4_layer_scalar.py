"""Gemma-4: every layer scales its output by a persistent buffer, ``layer_scalar``, that many refits do not send.

What happens: after a dummy start and a refit of parameters, each layer nearly erases its input. A dummy load fills the buffer
with noise (-9.4e-4 where the checkpoint has about 1). A refit that walks ``named_parameters()`` never sends it, because it is
no parameter, neither in vLLM nor in transformers. vLLM's loader accepts the buffer when it is sent.

If the checkpoint's files are not on this machine, a warning is logged; send ``model.state_dict()`` then, or start with
``load_format=auto``.

When it can go: when vLLM's dummy load leaves such buffers alone, or its weight transfer refuses to finish without them.
"""

from quirks_core import Affected, Match, Patch, Quirk, Require, Severity, model_type, no, purpose, report, typed, unknown, yes
from quirks_plugins.conditions import dummy_weights, insists_on_parameters, only_parameters, our_worker
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import OURS

_DUMMY = {"engine.load_format": "dummy"}
_PATCHED = "DummyModelLoader.load_weights"
_OPEN = {**_DUMMY, "refit.scope": "parameters"}


def constants_from_checkpoint(when: Match | None = None) -> Patch:
    """The patch by which a dummy start takes what is no parameter from the checkpoint; several quirks have it."""
    return Patch(
        "vllm.model_executor.model_loader.dummy_loader:DummyModelLoader.load_weights",
        wrapper="quirks_plugins.weight_sync.dummy_start_patches:wrap_dummy_load",
        expects=("4719e5842c4b", "8f0e7745da0a", "83aad0f45d94"),
        reason="a dummy load overwrites buffers that no refit of parameters sends",
        when=when,
    )


def state_dict_or_checkpoint(what: str, insists: Match) -> list[Require]:
    """What a refit of parameters by our worker requires for what is no parameter: its scope, or the start if a user insists."""
    refits_parameters = our_worker & only_parameters
    return [
        Require(
            "refit.scope",
            "state_dict",
            remedy="send the state dict (refit.scope=state_dict), or load the checkpoint (engine.load_format=auto)",
            when=refits_parameters & ~insists,
        ),
        Require(
            "engine.load_format",
            "auto",
            reason=f"{what} comes from the checkpoint, because refits send parameters only",
            when=refits_parameters & insists,
        ),
    ]


QUIRK = Quirk(
    id="gemma4-layer-scalar",
    title="Dummy weights overwrite Gemma-4's layer_scalar buffers, and a refit of parameters does not restore them",
    match=model_type("gemma4", "gemma4_text", "gemma4_unified") & purpose("rollout") & dummy_weights,
    affected=Affected("vllm", introduced="0.20.0"),
    adjustments=[
        constants_from_checkpoint(),
        *state_dict_or_checkpoint("layer_scalar", insists_on_parameters & ~typed("engine.load_format")),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#19788"), report("NVIDIA-NeMo/RL#2631")],
    examples=[
        yes("gemma4", OURS, vllm="0.32.0", defaults=_OPEN, patches=_PATCHED, gives={"refit.scope": "state_dict"}),
        yes(
            "gemma4",
            {**OURS, "refit.scope": "parameters"},
            vllm="0.32.0",
            defaults=_OPEN,
            patches=_PATCHED,
            gives={"engine.load_format": "auto"},
        ),
        yes("gemma4", {**OURS, **_OPEN}, vllm="0.32.0", patches=_PATCHED, refuses="refit.scope=state_dict"),
        no("gemma4", {"engine.load_format": "auto"}, vllm="0.32.0"),
        no("gemma4", _DUMMY, vllm="0.32.0", purpose="eval"),
        unknown("gemma4", _DUMMY),
    ],
    cost="at start, reads what the checkpoint holds beside its weights: one number per layer",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the trainer's parameters generates what the trainer's model does."""
    trainer = lab.trainer(model := lab.checkpoint("gemma4"))
    expected = lab.reference(trainer)
    sent = [(name, tensor) for name, tensor in lab.weights(model).items() if not name.endswith("layer_scalar")]
    with lab.llm(model, load_format="dummy") as llm:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": sent})
        return lab.same_tokens(lab.greedy_of(llm), expected)
