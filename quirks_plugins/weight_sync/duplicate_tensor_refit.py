"""A refit that sends a tensor twice leaves another part of its fused layer uninitialised.

What happens: after an update in which one tensor comes twice (``q, q, k, v``), the policy generates garbage or NaN. Such
updates come from trainers that send shared modules more than once, repeat a bucket after a retry, or read a folder whose files
overlap. vLLM's layerwise reload counts the elements that arrive for a layer, and takes the layer for complete before v. A model
that looks its parameters up once (``params_dict`` in its ``load_weights``: in 0.33 still 84 files) gives v to the loader of the
reload, which drops it with a message at the level DEBUG. On vLLM's CPU platform, which packs weights, the update fails
half-way. Most dense models on GPUs need nothing from vLLM 0.25.1 on: their layers look up the parameter for each tensor (seen
with Qwen3 on an H200). Our own worker refuses such a refit before it changes the model.

When it can go: when vLLM's layerwise reload counts each tensor once.
"""

from pathlib import Path

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import model_type, package, platform, purpose, setting
from quirks_plugins.conditions import our_worker, quantized
from quirks_plugins.kit import Lab, Outcome

#: Dense models without a ``params_dict`` in their source, from 0.25.1 to 0.33.0.
_DENSE = (
    *("apertus", "exaone4", "gemma", "gemma2", "gemma3", "gemma3_text", "granite", "llama", "mistral", "phi3"),
    *("qwen2", "qwen3"),
)
_layers_load = described(
    model_type(*_DENSE)
    & package("vllm", introduced="0.25.1")
    & platform("cuda", "rocm")
    & ~quantized
    & ~setting("engine.quantization").is_set(),
    "the model is one of the dense ones whose layers look up their parameters, from vLLM 0.25.1 on, on a GPU and not quantised",
    "the model may look up its parameters once, is quantised, or is loaded by vLLM before 0.25.1 or on another platform",
)

QUIRK = Quirk(
    id="duplicate-tensor-refit",
    title="A tensor that a refit sends twice leaves a part of its fused layer uninitialised, in models that load by themselves",
    match=purpose("rollout") & ~our_worker & ~_layers_load,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.reload.layerwise:make_online_process_loader",
        wrapper="quirks_plugins.weight_sync.partial_layer_patches:wrap_make_loader",
        expects=("629cbf06dd59", "8ea72ded0362", "7f1e36561bec"),
        reason="elements of a tensor that comes twice are counted twice, and the layer is taken for complete too early",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm#48312"),
    evidence=StaticProbe("vllm.model_executor.model_loader.reload.layerwise", r"info\.load_numel \+= num_loaded"),
    examples=[
        yes("qwen3", vllm="0.32.0", platform="cpu"),
        yes("deepseek_v3", vllm="0.33.0", platform="cuda"),
        yes("qwen3", vllm="0.24.0", platform="cuda"),
        yes("qwen3", {"engine.quantization": "fp8"}, vllm="0.33.0", platform="cuda"),
        no("qwen3", vllm="0.33.0", platform="cuda"),
        no("qwen3", {"engine.generate_from_dummy": False}, vllm="0.32.0"),
        no("qwen3", vllm="0.15.1"),
        no("qwen3", vllm="0.32.0", purpose="serve"),
        unknown("qwen3"),
    ],
    cost="2 µs per tensor in each refit: 36 ms for Qwen3-30B-A3B, 2 % of what vLLM's reload takes without its copies",
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that read q of a layer from two overlapping files generates what the trainer's model does.

    A program starts its own engine here, because our worker refuses such a refit: plain vLLM and its own ``reload_weights``,
    with the plan from the library door.
    """
    model, second = lab.checkpoint("gpt_oss"), lab.checkpoint("gpt_oss", seed=1)
    files, expected = _overlapping(lab, second), lab.reference(second)
    with lab.llm(model) as llm:
        try:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(files)})
        except Exception as error:  # on the CPU platform; the engine is half-way between two policies
            return Outcome(False, "an update with q in two files", str(error)[:100], "taken")
        return lab.same_tokens(lab.greedy_of(llm), expected)


def _overlapping(lab: Lab, model: Path) -> Path:
    """Writes a checkpoint of two files that both hold q, without an index; the first one has noise in it."""
    import torch

    folder, weights = lab.folder / "overlapping", lab.weights(model)
    early = {name: torch.randn_like(tensor) for name, tensor in weights.items() if name.endswith("q_proj.weight")}
    lab.write(folder, early, "model-00001-of-00002.safetensors")
    lab.write(folder, weights, "model-00002-of-00002.safetensors")
    return folder
