"""Weight updates through vLLM's own engines: every one goes through the loaders of all layers again. Only if forced.

What happens: an update by vLLM's ``ipc`` or ``nccl`` engine, by ``reload_weights``, or by a trainer that calls ``load_weights``
inside a layerwise reload, takes many times what its copies take: on an H200 (vLLM 0.26.0, a Qwen3-8B shape, 16.4 GB) 195 ms,
and a plain copy 8.8 ms. The reload calls each loader twice, rebuilds and processes all layers, and copies the result.

Only ``MODEL_QUIRKS_FORCE=recorded-updates`` switches the feature on, in engines of other programs. The first complete update is
recorded, and later ones are copied so, wherever the recording proves that loading does nothing else. Tensors that are not as
recorded go to the model's loaders, and the next update is recorded again, four times at most. The first copied update, and
every 64th after it, is compared with what the loaders would write; a difference fails the update. Engines with a quantised
model, with LoRA or with EPLB update as before.

When it can go: when vLLM's reload writes loaded weights in place where a layer is not processed. The quirk does nothing after
0.33.0, whose source has not been read yet, because a run should not be refused for the sake of speed.
"""

from quirks_core import Affected, Kind, Patch, Quirk, Severity, no, package, purpose, report, unknown, yes
from quirks_plugins.conditions import our_worker
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import OURS

_LAYERWISE = "vllm.model_executor.model_loader.reload.layerwise"
_PATCHES = "quirks_plugins.weight_sync.recorded_updates_patches"
_REASON = "no setting makes an update copy what it copied before"

QUIRK = Quirk(
    id="recorded-updates",
    title="vLLM's own weight updates load every layer anew, also where loading is nothing but copying (only if forced)",
    kind=Kind.FEATURE,
    match=our_worker & purpose("rollout") & package("vllm", fixed="0.33.1"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Patch(
            "vllm.model_executor.model_loader.utils:initialize_model",
            wrapper=f"{_PATCHES}:wrap_initialize_model",
            expects=("700764e9b6b8", "07eafecb5d69"),
            reason=_REASON,
            when=~our_worker,
        ),
        Patch(
            f"{_LAYERWISE}:initialize_layerwise_reload",
            wrapper=f"{_PATCHES}:wrap_initialize",
            expects=("aa5e2a00a361", "7d13b5469345", "90eb69b56a24"),
            reason=_REASON,
            when=~our_worker,
        ),
        Patch(
            f"{_LAYERWISE}:finalize_layerwise_processing",
            wrapper=f"{_PATCHES}:wrap_finalize",
            expects=("ffc2e70746d6", "432c0e8c8405", "9b7b0eb59d3f", "46740d508102"),
            reason=_REASON,
            when=~our_worker,
        ),
        Patch(
            "vllm.distributed.weight_transfer.packed_tensor:packed_ipc_consumer",
            wrapper=f"{_PATCHES}:wrap_packed_consumer",
            expects=("c062a3cd35b1", "d8f243d83d17", "4c8a807e7114"),
            reason="vLLM clones what it takes out of a trainer's buffer",
            when=~our_worker,
        ),
    ],
    severity=Severity.SLOW,
    references=report("https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/model_executor/model_loader/reload/layerwise.py"),
    examples=[
        yes("qwen3", OURS, vllm="0.26.0"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", OURS, vllm="0.32.0", purpose="serve"),
        no("qwen3", OURS, vllm="0.33.1"),
        unknown("qwen3", OURS),
    ],
    cost="the first complete update takes two to three times as long; the first that is copied is compared with the loaders",
)


async def scenario(lab: Lab) -> Outcome:
    """The second of two updates by vLLM's own ``reload_weights`` is copied, and the engine generates what the trainer does."""
    from quirks_plugins.weight_sync.recorded_updates_patches import copied

    model, first, second = (lab.checkpoint("qwen3", seed=seed) for seed in range(3))
    expected = lab.reference(second)
    with lab.llm(model) as llm:
        for folder in (first, second):
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        same = lab.same_tokens(lab.greedy_of(llm), expected)
        (number,) = llm.collective_rpc(copied)
    measure = "tensors of the second update that were copied; greedy tokens equal to transformers'"
    return Outcome(same.passed and number > 0, measure, f"{number}; {same.got}", f"above 0; {same.expected}")
