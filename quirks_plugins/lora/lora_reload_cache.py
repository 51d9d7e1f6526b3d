"""After a LoRA adapter is updated under the same name, requests reuse prefixes that the previous adapter computed.

What happens: after an update of the adapter, samples whose prompt was seen before have logprobs that match neither adapter:
their first KV blocks come from the old one, the rest from the new one. vLLM keys cached blocks by the adapter's name
(``_gen_lora_extra_hash_keys`` in v1/core/kv_cache_utils.py), and from 0.31.0 on by name and path. The contents of the files are
not part of the key. Trainers that save each step's adapter to one folder, and load it with ``load_inplace`` or unload and load
it again, keep name and path.

When it can go: when the cache's key includes a version of the adapter that changes with each update (vllm-project/vllm#48352).
"""

from pathlib import Path
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, fix, no, purpose, report, setting, unknown, yes
from quirks_plugins.kit import Generated, Lab, Outcome
from quirks_plugins.lora.evidence import write_adapter
from quirks_plugins.prefix_cache.prefix_cache_after_update import SALTED_REQUESTS
from quirks_plugins.runs import LORA

_CACHING = "engine.enable_prefix_caching"
_PATCHED = ["EngineCore.add_lora", "EngineCore.add_request", "EngineCore.preprocess_add_request"]

QUIRK = Quirk(
    id="lora-reload-cache",
    title="A LoRA adapter updated under its old name is served prefix blocks of the previous adapter",
    match=purpose("rollout") & setting("engine.enable_lora").is_true() & ~setting(_CACHING).one_of(False),
    affected=Affected("vllm", introduced="0.11.1"),
    adjustments=[
        *SALTED_REQUESTS,
        Patch(
            "vllm.v1.engine.core:EngineCore.add_lora",
            wrapper="quirks_plugins.prefix_cache.weight_version_patches:wrap_add_lora",
            expects=("c911c0883784",),
            reason="adapters are loaded again there, and cached blocks are keyed by their name and path alone",
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#42125"),
        report("vllm-project/vllm#30931"),
        report("NovaSky-AI/SkyRL/pull/1606"),
        fix("vllm-project/vllm/pull/48352"),
    ],
    evidence=StaticProbe(
        "vllm.v1.core.kv_cache_utils",
        r"return \[(?:\(\"lora\", lora_request\.lora_name, lora_request\.lora_path\)|request\.lora_request\.lora_name)\]",
    ),
    examples=[
        yes("qwen3", LORA, vllm="0.32.0", patches=_PATCHED),
        no("qwen3", {**LORA, _CACHING: False}, vllm="0.32.0"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", LORA, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", LORA),
    ],
    cost="one list of adapters from the workers at each load of one; nothing per token",
)


async def scenario(lab: Lab) -> Outcome:
    """After an update of the adapter, prompts that were seen before get the new adapter's logprobs."""
    from safetensors.torch import load_file

    model, folder = lab.checkpoint("qwen3"), lab.folder / "adapter"
    # Only whole blocks are cached, and only one of the prompts is longer than the smallest that every platform has.
    engine = {"load_format": "auto", "enable_lora": True, "max_lora_rank": 8, "max_loras": 1, "block_size": 32}
    got: list[Generated] = []
    async with lab.worker(model, {"engine": engine}) as worker:
        for seed in (1, 2):
            write_adapter(folder, seed)
            got = await _sampled(lab.engine(worker), folder, seed)
    trainer, factors = lab.trainer(model), load_file(folder / "adapter_model.safetensors")
    weights = dict(trainer.named_parameters())
    for name, down in factors.items():
        module, _, part = name.removeprefix("base_model.model.").partition(".lora_")
        if part == "A.weight":
            weights[f"{module}.weight"].data += factors[name.replace("lora_A", "lora_B")] @ down
    measure = "largest difference to the new adapter's logprobs, on prompts seen before its update"
    return lab.close_logprobs(got, lab.rescored(trainer, got), measure=measure)


async def _sampled(engine: Any, folder: Path, update: int) -> list[Generated]:
    """Loads the adapter in the place of the previous one, and samples with it."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS, Generated

    await engine.add_lora(LoRARequest("policy", 1, str(folder), load_inplace=True))
    request = LoRARequest("policy", 1, str(folder))
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)
    rows = []
    for number, prompt in enumerate(PROMPTS):
        name = f"{update}-{number}"
        async for output in engine.generate({"prompt_token_ids": list(prompt)}, params, name, lora_request=request):
            completion = output.outputs[0]
        chosen = zip(completion.logprobs, completion.token_ids, strict=True)
        rows.append(Generated(tuple(completion.token_ids), tuple(entry[token].logprob for entry, token in chosen)))
    return rows
