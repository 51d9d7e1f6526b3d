"""Before vLLM 0.33.0, an adapter that was loaded in place is read from its files again at every step of the engine.

What happens: after ``/v1/load_lora_adapter`` with ``load_inplace: true``, each step of every request of that adapter reads and
activates its files again. Throughput drops, on network storage to almost nothing. As soon as the trainer writes the next
adapter to the same folder, running requests continue with it, before the trainer loads it; a half-written file ends the engine.
The server keeps the request that loaded the adapter, with its flag, and gives it to every later request
(``OpenAIServingModels.load_lora_adapter``); the worker obeys the flag at each step (``LRUCacheWorkerLoRAManager.add_adapter``).

When it can go: when vLLM 0.32 is no longer supported.
"""

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.lora.evidence import ENGINE, greedy, write_adapter
from quirks_plugins.runs import LORA

QUIRK = Quirk(
    id="lora-inplace-reload",
    title="A LoRA adapter that was loaded in place is read from disk again at every step, whatever its files hold by then",
    match=setting("engine.enable_lora").is_true(),
    affected=Affected("vllm", introduced="0.26.0", fixed="0.33.0"),
    adjustments=Patch(
        "vllm.entrypoints.openai.models.serving:OpenAIServingModels.load_lora_adapter",
        wrapper="quirks_plugins.lora.adapter_patches:wrap_load_lora_adapter",
        expects=("0c24821043ac", "10877f8ea0c2"),
        reason="the server keeps the flag of the request, and no setting takes it off",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("NovaSky-AI/SkyRL/pull/1606"), report("vllm-project/vllm/pull/31326")],
    evidence=StaticProbe(
        "vllm.entrypoints.openai.models.serving", r"lora_request\.load_inplace = False", found_means_affected=False
    ),
    examples=[
        yes("qwen3", LORA, vllm="0.32.0", patches="OpenAIServingModels.load_lora_adapter"),
        yes("qwen3", LORA, vllm="0.26.0", purpose="serve"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", LORA, vllm="0.33.0"),
        unknown("qwen3", LORA, vllm="0.25.1"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """Requests keep the adapter that the server loaded in place, although its files have been written again since."""
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

    folder = write_adapter(lab.folder / "in-place", seed=1)
    async with lab.worker(lab.checkpoint("qwen3"), ENGINE) as worker:
        engine = lab.engine(worker)
        models = OpenAIServingModels(engine, [BaseModelPath(name="base", model_path="base")])
        answer = await models.load_lora_adapter(
            LoadLoRAAdapterRequest(lora_name="policy", lora_path=str(folder), load_inplace=True)
        )
        if not isinstance(answer, str):
            raise RuntimeError(f"the adapter was not loaded: {answer}")
        loaded = models.lora_requests["policy"]
        expected = await greedy(engine, loaded)
        write_adapter(folder, seed=2)
        got = await greedy(engine, loaded)
    seen = "those of the adapter that was loaded" if got == expected else "those of files that were not loaded yet"
    return Outcome(
        got == expected, "greedy tokens after the adapter's files changed", seen, "those of the adapter that was loaded"
    )
