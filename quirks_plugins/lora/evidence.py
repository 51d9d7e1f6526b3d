"""What the paired runs of the quirks on LoRA adapters share."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.facts.packages import installed_platform

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

_RANK = 8
_count = itertools.count()

#: Configuration of an engine that loads the tiny qwen3 and takes two adapters. The kernels of a GPU take no float32 adapters.
ENGINE: dict[str, Any] = {
    "engine": {
        "dtype": "float32" if installed_platform() == "cpu" else "bfloat16",
        "load_format": "auto",
        "enable_lora": True,
        "max_lora_rank": _RANK,
        "max_loras": 2,
        "enable_prefix_caching": False,
    }
}


def write_adapter(folder: Path, seed: int, prefix: str = "model") -> Path:
    """Writes a random adapter of rank 8 for q and v of the kind qwen3; the names of its layers start with `prefix`."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer, (name, height) in itertools.product(range(2), (("q_proj", 64), ("v_proj", 32))):
        module = f"base_model.model.{prefix}.layers.{layer}.self_attn.{name}"
        tensors[f"{module}.lora_A.weight"] = torch.randn(_RANK, 64, generator=generator) / 8
        tensors[f"{module}.lora_B.weight"] = torch.randn(height, _RANK, generator=generator) / _RANK**0.5
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


async def greedy(
    engine: Any, adapter: Path | LoRARequest | None = None, *, load: bool = False, number: int = 1
) -> list[tuple[int, ...]]:
    """Returns the greedy tokens of the kit's prompts with an adapter (its folder or the request for it), or of the base model.

    `load` calls ``add_lora`` first, and `number` is the ``lora_int_id`` of a folder.
    """
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS

    request = LoRARequest(f"policy-{number}", number, str(adapter)) if isinstance(adapter, Path) else adapter
    if load:
        await engine.add_lora(request)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    rows = []
    for prompt in PROMPTS:
        async for output in engine.generate(
            {"prompt_token_ids": list(prompt)}, params, f"lora-{next(_count)}", lora_request=request
        ):
            result = output.outputs[0]
        rows.append(tuple(result.token_ids))
    return rows
