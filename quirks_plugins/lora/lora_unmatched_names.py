"""A LoRA adapter whose names match no module of the model is loaded without an error, and requests get the base model.

What happens: ``/v1/models`` lists the adapter. It happens if an adapter was trained on a language model alone and is served in
a model that wraps it (``language_model.``), if a trainer's names have a prefix that vLLM does not know, or if
``lora_target_modules`` excludes all of its modules. vLLM checks only the last part of each name (``q_proj``), and goes on
without the weights that it does not find (``LoRAModelManager.activate_adapter``). With pipeline or expert parallelism a rank
may have none of an adapter's modules. If an adapter comes with a request and was not loaded before, the error ends the engine,
as every other error of such a load does. Of an adapter that matches in part, the modules without effect are named in the log:
an adapter may hold more on purpose.

When it can go: when vLLM refuses such adapters (vllm-project/vllm#34186, open).
"""

from quirks_core import Affected, Patch, Quirk, Severity, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.lora.evidence import ENGINE, greedy, write_adapter
from quirks_plugins.runs import LORA

QUIRK = Quirk(
    id="lora-unmatched-names",
    title="A LoRA adapter whose names match no module is loaded silently, and its requests get the base model",
    match=setting("engine.enable_lora").is_true()
    & ~setting("engine.pipeline_parallel_size").above(1)
    & ~setting("engine.enable_expert_parallel").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.lora.model_manager:LoRAModelManager.activate_adapter",
        wrapper="quirks_plugins.lora.adapter_patches:wrap_activate_adapter",
        expects=("97a8755e0973", "11f1be75a001", "364ca197204e", "4abc7b5c756d"),
        reason="vLLM skips modules without weights and has no setting for it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#34186"), report("vllm-project/vllm#48019"), report("vllm-project/vllm#55193")],
    examples=[
        yes("qwen3", LORA, vllm="0.32.0", patches="LoRAModelManager.activate_adapter"),
        yes("qwen3", LORA, vllm="0.33.0", purpose="serve"),
        no("qwen3", {**LORA, "engine.pipeline_parallel_size": 2}, vllm="0.32.0"),
        no("qwen3", {**LORA, "engine.enable_expert_parallel": True}, vllm="0.32.0"),
        no("qwen3", vllm="0.32.0"),
        unknown("qwen3", LORA),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An adapter with the names of a model that wraps this one is refused, and not served as the base model."""
    folder = write_adapter(lab.folder / "wrapped", seed=1, prefix="language_model.model")
    async with lab.worker(lab.checkpoint("qwen3"), ENGINE) as worker:
        engine, measure = lab.engine(worker), "an adapter whose names match no module"
        base = await greedy(engine)
        try:
            got = await greedy(engine, folder, load=True)
        except Exception as error:  # the core's errors arrive as vLLM's own type
            if "is a module of this model that" not in str(error):
                raise
            return Outcome(True, measure, "refused", "refused")
    return Outcome(False, measure, f"loaded; tokens equal to the base model's: {got == base}", "refused")
