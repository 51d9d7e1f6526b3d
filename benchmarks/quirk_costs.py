"""What the quirks of a rollout cost in an update of the largest models that they meet, beside vLLM's own loading.

    python benchmarks/quirk_costs.py            a table
    python benchmarks/quirk_costs.py --json     the same as JSON

vLLM's models are made from published configurations on torch's meta device: all names and shapes, and nothing is copied, so
that a quirk's share is at its largest. A patch of the loading is measured around a method that only looks at the names, and
without it; its row is the difference. Times are those of the processor. vLLM's own loading is measured on a part of the
tensors, and scaled to all of them. Quirks that are in force in these rollouts and are not measured are named below the table.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measure

from quirks_core import yes
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.facts.packages import installed_version
from quirks_core.plan.resolve import resolve
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry

_QWEN = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "architectures": ["Qwen3MoeForCausalLM"],
}
#: The rest of it is what transformers has by default.
_DEEPSEEK = {"num_hidden_layers": 61, "n_routed_experts": 256, "architectures": ["DeepseekV3ForCausalLM"]}
_MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
#: How many tensors stand for all where each is a call of its own; and how many requests wait, of how many tokens.
_CALLS, _OWN_CALLS = 400, 12
_WAITING, _TOKENS = 1000, 4096
#: What vLLM gives a parameter that is larger than what it loads.
_PADDED = "weight_loader_numel"
#: The first layer with experts that a reload gets, one for each round.
_FIRST_LAYER = 6
_seen: set[str] = set()
_measured: set[str] = set()


def names(kind: str, *, scales: bool = False) -> list[str]:
    """The names of a checkpoint's tensors.

    Args:
        kind: ``qwen3_moe`` (Qwen3-30B-A3B) or ``deepseek_v3``.
        scales: Every product has its FP8 scales.
    """
    if kind == "qwen3_moe":
        layers, dense, experts, shared = 48, 0, 128, ()
        attention, norms, router = ("q_proj", "k_proj", "v_proj", "o_proj"), ("q_norm", "k_norm"), ("gate.weight",)
    else:
        layers, dense, experts, shared = 61, 3, 256, ("mlp.shared_experts",)
        attention, norms, router = _MLA, ("q_a_layernorm", "kv_a_layernorm"), ("gate.weight", "gate.e_score_correction_bias")
    found = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    for number in range(layers):
        layer = f"model.layers.{number}"
        blocks = (
            ["mlp"] if number < dense else [f"mlp.{name}" for name in (*(f"experts.{one}" for one in range(experts)), *shared)]
        )
        products = [f"self_attn.{name}" for name in attention]
        products += [f"{block}.{name}" for block in blocks for name in ("gate_proj", "up_proj", "down_proj")]
        found += [f"{layer}.{name}.weight" for name in products]
        found += [f"{layer}.{name}.weight_scale_inv" for name in products if scales]
        found += [f"{layer}.{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")]
        found += [f"{layer}.self_attn.{name}.weight" for name in norms]
        found += [f"{layer}.mlp.{name}" for name in router if number >= dense]
    return found


def made(kind: str, folder: Path, *, lora: bool = False) -> Any:
    """Makes a model of vLLM on the meta device."""
    import torch
    from transformers import AutoConfig
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    AutoConfig.for_model(kind, **(_QWEN if kind == "qwen3_moe" else _DEEPSEEK)).save_pretrained(folder)
    arguments = EngineArgs(model=str(folder), dtype="bfloat16", enforce_eager=True, max_model_len=256)
    arguments.skip_tokenizer_init = True
    config = arguments.create_engine_config()
    with set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16):
        _groups()
        with torch.device("meta"):
            model = initialize_model(config)
    if lora:
        _wrap_for_lora(model)
    return model


def _wrap_for_lora(model: Any) -> None:
    """Wraps the layers that vLLM would; its own wrappers want the kernels of experts, which a meta device has not."""
    from vllm.lora.layers import BaseLayerWithLoRA

    for parent in list(model.modules()):
        for name in ("qkv_proj", "o_proj", "experts"):
            if (layer := parent._modules.get(name)) is not None:
                parent._modules[name] = wrapper = BaseLayerWithLoRA()
                wrapper.base_layer = layer
        if hasattr(parent, "lora_base_layer_prefix"):
            parent.lora_base_layer_prefix = "base_layer."


def _groups() -> None:
    from torch import distributed
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.utils.network_utils import get_open_port

    if not distributed.is_initialized():
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
        initialize_model_parallel(1, 1)


def patches(kind: str, *, lora: bool = False) -> dict[str, dict[str, Callable[..., Any]]]:
    """The wrappers that are in force by default in a rollout on a CPU or a GPU, by target and quirk."""
    items = Registry.load([item for item in discover() if item.distribution == BUILT_IN], strict=True).loaded
    config = {"model_type": kind, **(_QWEN if kind == "qwen3_moe" else _DEEPSEEK)}
    settings = {"engine.enable_lora": True} if lora else {}
    found: dict[str, dict[str, Callable[..., Any]]] = {}
    for platform in ("cpu", "cuda"):
        plan = resolve(yes(config, settings, vllm=installed_version("vllm"), platform=platform).context(), items)
        for patch in plan.patches:
            module, _, name = patch.source.partition(":")
            found.setdefault(patch.target.rpartition(":")[2], {})[patch.quirk.id] = getattr(import_module(module), name)
    return found


def _cpu_ms(call: Callable[[], object]) -> float:
    """Milliseconds of the processor; the machine may be busy."""
    start = time.thread_time()
    call()
    return (time.thread_time() - start) * 1e3


def looked_at(weights: Any) -> None:
    """Loads nothing."""
    deque(weights, 0)


def loading(model: Any, wrap: Callable[..., Any], sent: list[str], *, lora: bool = False) -> Callable[[int], float]:
    """Returns a function of the tensors that a call loads (0: all of them): what a wrapper adds to an update, in ms."""
    kind, kept = type(model), type(model).load_weights
    model.load_weights = looked_at
    if lora:
        wrap(lambda _, given: given)(None, model)
    else:
        wrap(lambda *_: model)(None, None, SimpleNamespace(runner_type="generate"))
    wrapped = model.load_weights
    del model.load_weights
    kind.load_weights = kept

    def cost(at_once: int) -> float:
        part = sent[:: max(1, len(sent) // _CALLS)] if at_once else sent
        size = at_once or len(part)
        calls = [[(name, None) for name in part[start : start + size]] for start in range(0, len(part), size)]
        with_quirk, without = (_cpu_ms(lambda load=load: deque(map(load, calls), 0)) for load in (wrapped, looked_at))
        return (with_quirk - without) * len(sent) / len(part)

    return cost


def own(model: Any, sent: list[str], at_once: int) -> float:
    """What vLLM's own loading takes for an update, in ms, by the experts of one layer."""
    return _load_experts(model, sent, 5, at_once)


def own_reload(model: Any, sent: list[str], layers: Iterator[int]) -> float:
    """The same in a layerwise reload, by three quarters of the experts of a layer, which is then not complete."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    number = next(layers)
    if number == _FIRST_LAYER:
        initialize_layerwise_reload(model)
    return _load_experts(model, sent, number, 0, 0.75)


def _load_experts(model: Any, sent: list[str], layer: int, at_once: int, share: float = 1.0) -> float:
    import torch

    hidden, width = model.config.hidden_size, model.config.moe_intermediate_size
    part = [name for name in sent if f".layers.{layer}.mlp.experts." in name and name.endswith(".weight")]
    part = part[: _OWN_CALLS if at_once else int(share * len(part))]
    empty = partial(torch.empty, device="meta", dtype=torch.bfloat16)
    tensors = [(name, empty((hidden, width) if "down" in name else (width, hidden))) for name in part]
    calls = [[tensor] for tensor in tensors] if at_once else [tensors]
    return _cpu_ms(lambda: deque(map(model.load_weights, calls), 0)) * len(sent) / len(part)


def reload_calls(model: Any, wrap: Callable[..., Any], sent: list[str]) -> float:
    """What ``duplicate-tensor-refit`` adds to each call of a parameter's loader, in ms for all tensors."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    class Call:
        """What vLLM keeps of a call."""

    layer = next(module for module in model.modules() if next(module.parameters(recurse=False), None) is not None)
    parameter = next(layer.parameters(recurse=False))
    held = get_layerwise_info(layer).loaded_weights

    def load(*_: Any, **__: Any) -> None:
        held.append(("weight", Call()))

    loader = wrap(lambda *_: load)(layer, "weight")
    given = [(parameter, parameter, f"experts.{number}", "w1", number) for number in range(_CALLS)]
    times = []
    for one in (loader, load):
        times.append(_cpu_ms(lambda one=one: deque((one(*call) for call in given), 0)))
        held.clear()
    return (times[0] - times[1]) * len(sent) / _CALLS


def reload_layers(model: Any, wrap: Callable[..., Any]) -> float:
    """What ``partial-module-refit`` adds to each layer that came as a whole, in ms for all."""
    process, info = wrap(lambda *_: None), SimpleNamespace(kernel_tensors=({}, {}), load_numel=1, load_numel_total=1)
    layers = [one for one in model.modules() if not any(hasattr(tensor, _PADDED) for tensor in one._parameters.values())]
    return _cpu_ms(lambda: deque((process(layer, info) for layer in layers), 0))


def waiting() -> tuple[Callable[[], float], dict[str, Callable[[], float]]]:
    """What vLLM's hashing of waiting requests takes, and what an update and each request cost them."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    from quirks_plugins.prefix_cache import weight_version_patches as salts

    init_none_hash(sha256)
    hasher, params = get_request_block_hasher(16, sha256), SamplingParams(max_tokens=1)
    requests = {
        str(number): Request(str(number), list(range(_TOKENS)), params, None, block_hasher=hasher) for number in range(_WAITING)
    }
    core = SimpleNamespace(
        scheduler=SimpleNamespace(requests=requests),
        model_executor=SimpleNamespace(collective_rpc=lambda _: [0]),
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(is_multimodal_model=False)),
    )
    update = salts.wrap_collective_rpc(lambda *_: [None])
    add = salts.wrap_add_request(lambda *_: None)

    def hashed() -> None:
        for request in requests.values():
            request.block_hashes = []
            request.update_block_hashes()

    def added() -> float:
        return _cpu_ms(lambda: deque((add(core, request) for request in requests.values()), 0))

    return partial(_cpu_ms, hashed), {
        "at an update": lambda: _cpu_ms(lambda: update(core, "reload_weights")),
        "when they are added": added,
    }


def of_model(title: str, kind: str, rounds: int, *, lora: bool = False, scales: bool = False) -> Iterator[measure.Row]:
    """Measures one model."""
    sent, wrappers = names(kind, scales=scales), patches(kind, lora=lora)
    with tempfile.TemporaryDirectory() as folder:
        model = made(kind, Path(folder), lora=lora)
        plain = made(kind, Path(folder)) if lora else model
    _seen.update(quirk for found in wrappers.values() for quirk in found)
    loads = wrappers["LoRAModelRunnerMixin.load_lora_model" if lora else "BaseModelLoader.load_model"]
    # The other one copies tensors, which have no memory here.
    costs = {
        quirk: loading(model, wrap, sent, lora=lora) for quirk, wrap in loads.items() if quirk != "cpu-load-into-live-model"
    }
    for how, at_once in (("one by one", 1), ("in one call", 0)):
        calls = {quirk: partial(cost, at_once) for quirk, cost in costs.items()}
        yield from _rows(f"{title}, {len(sent)} tensors {how}", partial(own, plain, sent, at_once), calls, rounds)
    if not lora:
        calls = {
            quirk: partial(reload_calls, model, wrap, sent) for quirk, wrap in wrappers["make_online_process_loader"].items()
        }
        calls |= {quirk: partial(reload_layers, model, wrap) for quirk, wrap in wrappers["_layerwise_process"].items()}
        base = partial(own_reload, plain, sent, count(_FIRST_LAYER))
        yield from _rows(f"{title}, {len(sent)} tensors in a reload", base, calls, rounds)


def _rows(what: str, base: Callable[[], float], calls: dict[str, Callable[[], float]], rounds: int) -> list[measure.Row]:
    _measured.update(calls)
    first = f"{what}: vLLM's own loading"
    return measure.rows(measure.in_turns({first: base} | calls, rounds), to=first)


def results(rounds: int) -> Iterator[measure.Row]:
    """Measures every model, and requests that wait."""
    yield from of_model("Qwen3-30B-A3B", "qwen3_moe", rounds)
    yield from of_model("Qwen3-30B-A3B with LoRA", "qwen3_moe", rounds, lora=True)
    yield from of_model("DeepSeek-V3", "deepseek_v3", rounds)
    yield from of_model("DeepSeek-V3 in FP8", "deepseek_v3", rounds, scales=True)
    hashed, costs = waiting()
    base = f"{_WAITING} requests of {_TOKENS} tokens: vLLM's own hashing"
    calls = {base: hashed} | {f"prefix-cache-after-update: {name}": cost for name, cost in costs.items()}
    yield from measure.rows(measure.in_turns(calls, rounds), to=base)


if __name__ == "__main__":
    code = measure.main(__doc__ or "", results, rounds=5)
    if "--json" not in sys.argv:
        print(f"not measured here: {', '.join(sorted(_seen - _measured))}")
    sys.exit(code)
