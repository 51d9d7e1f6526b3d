"""Gemma 1 to 3 on vLLM before 0.9.2: dummy weights overwrite the embedding normalizer.

What happens: the rollout engine generates garbage after a start from dummy weights, also after a refit. The normalizer,
sqrt(hidden size), was a persistent buffer. A dummy load fills every tensor of the state dict with noise of ±1e-3, and so the
normalizer, too. No refit sends it, because the trainer's model has no such tensor.

When it can go: vLLM 0.9.2 made the buffer non-persistent, so a dummy load leaves it alone.
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, fix, model_type, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_DUMMY = {"engine.load_format": "dummy"}

QUIRK = Quirk(
    id="gemma-normalizer-dummy-load",
    title="Dummy weights overwrite Gemma's embedding normalizer, and no refit restores it",
    match=model_type("gemma", "gemma2", "gemma3", "gemma3_text"),
    affected=Affected("vllm", fixed="0.9.2"),
    adjustments=Require("engine.load_format", "auto", instead_of=("dummy",)),
    severity=Severity.WRONG_OUTPUT,
    references=[report("NVIDIA-NeMo/RL/pull/298"), fix("vllm-project/vllm/pull/19788")],
    evidence=StaticProbe(
        "vllm.model_executor.models.gemma3",
        r'register_buffer\(\s*"normalizer"[^)]*\)?[^)]*\),\s*persistent=False',
        found_means_affected=False,
    ),
    examples=[
        yes("gemma3", vllm="0.9.1", defaults=_DUMMY, gives={"engine.load_format": "auto"}),
        yes("gemma", _DUMMY, vllm="0.8.5.post1", refuses=["must be 'auto'", "'dummy' was set", "set it to 'auto'"]),
        yes("gemma3_text", {"engine.load_format": "runai_streamer"}, vllm="0.9.2rc1", gives={}),
        no("gemma3", vllm="0.9.2+cpu"),
        unknown("gemma3"),
    ],
    cost="reads the whole checkpoint at every engine start",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the trainer's weights generates what the trainer's model does."""
    model = lab.checkpoint("gemma3")
    trainer = lab.trainer(model)
    async with lab.worker(model) as worker:
        await worker.refit_async(trainer)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
