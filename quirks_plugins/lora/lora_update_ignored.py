"""A new LoRA adapter under an id that is loaded already never arrives: vLLM keeps the old one.

What happens: the trainer saves its adapter after every step and calls ``add_lora`` with the same ``lora_int_id``. vLLM keeps an
adapter by its number alone: if that is loaded, ``LRUCacheWorkerLoRAManager.add_adapter`` looks neither at the path nor at the
files, unless the request contains ``load_inplace=True``. Requests still name an adapter by its number and load nothing: call
``add_lora`` before the first request after an update. Cached prefixes are another matter (``lora-reload-cache``).

When it can go: when vLLM refuses an id that is in use with another path or other files, or loads it.
"""

from quirks_core import Affected, Patch, Quirk, Severity, fix, no, purpose, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.lora.evidence import ENGINE, greedy, write_adapter
from quirks_plugins.runs import LORA

QUIRK = Quirk(
    id="lora-update-ignored",
    title="A new LoRA adapter under an id that is loaded already is ignored, silently",
    match=purpose("rollout") & setting("engine.enable_lora").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.add_lora",
        wrapper="quirks_plugins.lora.adapter_patches:wrap_add_lora",
        expects=("6a8882119315",),
        reason="whether an adapter is read again is an argument of the trainer's call, which no setting reaches",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#48297"), report("vllm-project/vllm#20149"), fix("vllm-project/vllm/pull/31326")],
    examples=[
        yes("qwen3", LORA, vllm="0.32.0", patches="LoRAModelRunnerMixin.add_lora"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", LORA, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", LORA),
    ],
    cost="four looks at the adapter's folder for each add_lora",
)


async def scenario(lab: Lab) -> Outcome:
    """After add_lora with the same id, requests get the adapter that the folder holds now."""
    folder = lab.folder / "updated"
    async with lab.worker(lab.checkpoint("qwen3"), ENGINE) as worker:
        engine = lab.engine(worker)
        first = await greedy(engine, write_adapter(folder, seed=1), load=True)
        got = await greedy(engine, write_adapter(folder, seed=2), load=True)
        expected = await greedy(engine, write_adapter(lab.folder / "other", seed=2), load=True, number=2)
    seen = "the new adapter" if got == expected else "the old adapter" if got == first else "neither adapter"
    return Outcome(got == expected, "greedy tokens after add_lora of new files under the same id", seen, "the new adapter")
