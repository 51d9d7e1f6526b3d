"""Phi on vLLM's Transformers backend: the first refit after a dummy start loses the head's bias, and the engine dies.

What happens: the refit of Phi 1, 1.5 or 2 succeeds, and the first request after it ends the engine with ``AttributeError:
'ParallelLMHead' object has no attribute 'bias'``. Our own worker refuses to go on after such a refit. The Transformers backend
adds a bias to its head when a checkpoint has it (``CausalMixin.load_weights``). An engine that started from dummy weights has
read no checkpoint, so the bias first arrives with a refit, at whose end the layerwise reload gives a layer back the tensors
that it had before (``_place_kernel_tensors``): it removes the bias.

When it can go: when the reload keeps parameters that loading added. Phi runs on the Transformers backend since vLLM 0.32.0.
Other models with such a bias are affected if ``engine.model_impl=transformers`` makes them run there.
"""

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, model_type, no, purpose, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="transformers-backend-head-bias",
    title="A refit of Phi after a dummy start removes the head's bias, and the next request ends the engine",
    match=(model_type("phi") | setting("engine.model_impl").one_of("transformers")) & purpose("rollout"),
    affected=Affected("vllm", introduced="0.32.0"),
    adjustments=Patch(
        "vllm.model_executor.models.transformers.causal:CausalMixin.load_weights",
        wrapper="quirks_plugins.weight_sync.reload_patches:wrap_load_head",
        expects=("eba9f025b09a",),
        reason="a reload removes parameters that the model did not have when it began",
    ),
    severity=Severity.CRASH,
    crash=r"removes lm_head\.bias|object has no attribute 'bias'",
    references=[report("vllm-project/vllm/pull/46835"), report("vllm-project/vllm#48312")],
    evidence=StaticProbe("vllm.model_executor.models.registry", r'"PhiForCausalLM": \("transformers"'),
    examples=[
        yes("phi", vllm="0.32.0"),
        yes("phimoe", {"engine.model_impl": "transformers"}, vllm="0.32.0"),
        no("phi", vllm="0.31.0"),
        no("phi", vllm="0.32.0", purpose="serve"),
        no("phimoe", {"engine.model_impl": "vllm"}, vllm="0.32.0"),
        unknown("phi"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that started from dummy weights generates what the trainer does, whose weights it got."""
    trainer = lab.trainer(lab.checkpoint("phi", seed=1))
    async with lab.worker(lab.checkpoint("phi")) as worker:
        await worker.refit_async(trainer)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
