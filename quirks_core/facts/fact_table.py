"""The facts that every run has, by name: what each means, how it is read from a run, and when it is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quirks_core.configuration.slots import SLOTS, is_slot, slot_around, slot_named
from quirks_core.facts.checkpoint import CHECKPOINT_FACTS
from quirks_core.facts.model_runner import MODEL_RUNNER, Runner, model_runner
from quirks_core.facts.packages import CPU_FEATURES, distribution_of
from quirks_core.facts.unknown import UNKNOWN

#: Prefix of the facts about the features of the CPU.
CPU = "platform.cpu."
GPU = "platform.gpu.capability"


@dataclass(frozen=True, slots=True)
class FactSpec:
    """One fact that every run has.

    Attributes:
        name: Its name; for a family of facts, the prefix of their names.
        help: What it means.
        read: Reads it from a run, a `quirks_core.facts.context.RunContext`, by its whole name.
        unknown: When it is unknown; empty if every run has it.
        takes: What it takes if it is assumed, as an annotation; None if ``--assume`` does not take its name.
    """

    name: str
    help: str
    read: Callable[[Any, str], Any]
    unknown: str = ""
    takes: Any = None


def feature(features: frozenset[str] | None, name: str) -> Any:
    """Returns whether a CPU with these features has that of a fact; `UNKNOWN` if they are unknown."""
    return UNKNOWN if features is None else name.removeprefix(CPU) in features


def _known(value: Any) -> Any:
    return UNKNOWN if value is None else value


def _size(*names: str) -> Callable[[Any, str], int]:
    """The product of parallel sizes; a size that is not set counts as 1."""

    def read(run: Any, _: str) -> int:
        product = 1
        for name in names:
            product *= run.settings.get(f"engine.{name}_parallel_size") or 1
        return product

    return read


def _num_gpus(run: Any, _: str) -> int | None:
    gpus = run.settings.get("cluster.gpus_per_node")
    return None if gpus is None else gpus * (run.settings.get("cluster.num_nodes") or 1)


def _model_type(run: Any, _: str) -> Any:
    types = run.loaded.model_types
    return UNKNOWN if not types else types[0] if len(types) == 1 else types


def _is_moe(run: Any, _: str) -> Any:
    return UNKNOWN if run.loaded.num_experts is UNKNOWN else run.loaded.is_moe


#: vLLM's own names of a dtype beside torch's.
_ALIASES = {"half": "float16", "float": "float32"}
#: Where vLLM looks for a checkpoint's dtype, the first that is there.
_DTYPE_KEYS = ("dtype", "torch_dtype")


def _engine_computes_in(run: Any, _: str) -> Any:
    """The dtype of the engine's products: ``engine.dtype``, or what vLLM's ``auto`` makes of the checkpoint's."""
    given = run.settings.get("engine.dtype")
    if given not in (None, "auto"):
        return _ALIASES.get(given, given)
    parts = (run.loaded.config, run.loaded.text_config)
    found = next((part[key] for part in parts for key in _DTYPE_KEYS if part.get(key)), None)
    return "bfloat16" if found == "float32" else found


def _trainer_computes_in(run: Any, _: str) -> Any:
    """The dtype of the trainer's products: that of autocast, or of its weights."""
    products = run.fact("train.autocast")
    return run.fact("train.dtype") if products in (None, "none") else products


def _argument(run: Any, name: str) -> Any:
    """An argument of vLLM, or a key in its value."""
    if (slot := slot_around(name)) != name:
        return _walk(run.fact(slot), name.removeprefix(f"{slot}."))
    names = run.source.arguments.names() if run.source_known("vllm") else None
    # An argument that the installed vLLM does not have is not the same as an argument that is not set.
    is_there = is_slot(name) and (names is None or slot_named(name).key in names)
    return run.settings.get(name, None if is_there else UNKNOWN)


def _walk(value: Any, path: str) -> Any:
    for key in path.split(".") if value is not UNKNOWN else ():
        if isinstance(value, list):  # the value of each of its mappings
            value = [item[key] for item in value if isinstance(item, dict) and key in item] or None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


_NO_TYPE = "config.json gives neither model_type nor architectures"
_NO_COUNT = "config.json gives no number of experts, and either no model_type or one of a MoE model"

_NO_FILE = {
    "model": "the file cannot be read",
    "tokenizer": "tokenizer_config.json or, where it is needed, tokenizer.json is missing or cannot be read",
}

_FACTS = (
    FactSpec("purpose", "rollout, eval or serve", lambda run, _: run.purpose),
    FactSpec("recipe", "name of the training recipe", lambda run, _: run.recipe),
    FactSpec(
        "platform",
        "cpu, cuda, rocm or xpu: what the installed engine is built for",
        lambda run, _: _known(run.platform),
        "no engine is installed, or its version does not say",
    ),
    *(
        FactSpec(
            f"{CPU}{one}",
            f"the CPU has {one}; on the CPU platform",
            lambda run, name: feature(run.cpu, name),
            "another platform, or the CPU is no x86, or its features cannot be read",
        )
        for one in CPU_FEATURES
    ),
    FactSpec(
        GPU,
        "compute capability of the NVIDIA GPUs, times ten (Hopper: 90); on the CUDA platform",
        lambda run, _: _known(run.gpu),
        "another platform, no GPU in the process that plans, or GPUs of several kinds",
    ),
    FactSpec(
        MODEL_RUNNER,
        "v1 or v2: which of vLLM's model runners the engine uses",
        lambda run, _: model_runner(run, run.loaded),
        "a platform or release that was not read, or what decides (the model, drafts, another argument) cannot be told",
        Runner,
    ),
    FactSpec(
        "engine.computes_in",
        "dtype of the engine's products: engine.dtype, or what vLLM makes of the checkpoint's; absent if both are open",
        _engine_computes_in,
    ),
    FactSpec(
        "train.computes_in",
        "dtype of the trainer's products: train.autocast, or that of its weights; absent if both are open",
        _trainer_computes_in,
    ),
    FactSpec("model.name", "hub id or folder name", lambda run, _: run.model.name),
    FactSpec(
        "model.model_type",
        "model_type of config.json; several where architectures, by which vLLM goes, names another one",
        _model_type,
        _NO_TYPE,
        str,
    ),
    FactSpec("model.architectures", "architectures of config.json", lambda run, _: run.loaded.architectures),
    FactSpec("model.is_moe", "the model has more than one expert", _is_moe, _NO_COUNT, bool),
    FactSpec(
        "model.num_experts",
        "routed experts of a MoE layer, the most of any",
        lambda run, _: run.loaded.num_experts,
        _NO_COUNT,
        int,
    ),
    FactSpec(
        "model.head_size",
        "width of an attention head: head_dim, or hidden_size / num_attention_heads; absent without such heads",
        lambda run, _: run.loaded.head_size,
    ),
    FactSpec(
        "model.is_quantized",
        "the weights are quantised, by config.json or hf_quant_config.json, and engine.hf_overrides has not emptied it",
        lambda run, _: run.loaded.is_quantized,
    ),
    FactSpec("model.is_multimodal", "the model accepts image or audio input", lambda run, _: run.loaded.is_multimodal),
    *(
        FactSpec(name, help_, lambda run, name: run.of_checkpoint(name), _NO_FILE[name.partition(".")[0]], takes)
        for name, (help_, _, takes) in CHECKPOINT_FACTS.items()
    ),
    FactSpec("parallel.replica_size", "TP x PP: ranks that hold one copy of the model", _size("tensor", "pipeline")),
    FactSpec(
        "parallel.expert_group_size",
        "DP x TP: ranks over which one vLLM data-parallel group spreads its experts",
        _size("data", "tensor"),
    ),
    FactSpec("parallel.num_ranks", "DP x TP x PP", _size("data", "tensor", "pipeline")),
    FactSpec("cluster.num_gpus", "nodes x GPUs of each; absent where no number of GPUs is configured", _num_gpus),
    FactSpec(
        "environment.unread",
        "VLLM_* variables that are set and that the installed engine does not read",
        lambda run, _: _known(run.unread_environment),
        "vLLM is not installed, or its version is assumed",
        list[str],
    ),
)
#: The facts with fixed names. Slots are facts as well, and so are the members of `FAMILIES`.
FACTS: Mapping[str, FactSpec] = {spec.name: spec for spec in _FACTS}
#: What ``--assume`` takes for the facts that it takes by their names, as annotations.
ASSUMABLE: Mapping[str, Any] = {spec.name: spec.takes for spec in _FACTS if spec.takes is not None}
#: Families of facts: a prefix with any name after it.
FAMILIES = (
    FactSpec("typed.", "the user typed the value of that slot", lambda run, name: run.is_typed(name.removeprefix("typed."))),
    FactSpec(
        "env.",
        "an environment variable that the user set, in the shell or in the configuration's section env",
        lambda run, name: run.environment.get(name.removeprefix("env.")),
    ),
    FactSpec(
        "engine.",
        "an argument of vLLM that the user typed; also a key in its value, nested ones with dots; of a list, that of each item",
        _argument,
        "the installed vLLM has no such argument",
    ),
    FactSpec(
        "packages.",
        "the installed version of a distribution",
        lambda run, name: run.packages.get(distribution_of(name.removeprefix("packages.")), UNKNOWN),
        "it is not installed",
    ),
    FactSpec(
        "model.quantization.",
        "a key of how the weights are quantised, wherever the checkpoint keeps it, with quant_method as vLLM completes it",
        lambda run, name: _walk(run.loaded.quantization, name.removeprefix("model.quantization.")),
    ),
    FactSpec(
        "model.text_config.",
        "a key of the language model's part of config.json, wherever that is, or else of the whole",
        lambda run, name: _walk(run.loaded.text_config, name.removeprefix("model.text_config.")),
    ),
    FactSpec(
        "model.config.",
        "a key of config.json, nested ones with dots, after engine.hf_overrides as typed",
        lambda run, name: _walk(run.loaded.config, name.removeprefix("model.config.")),
    ),
)


@lru_cache(maxsize=4096)
def find_fact(name: str) -> FactSpec | None:
    """Returns the fact, or the family of facts, that has a name; None if none has it. A slot's own name is in neither."""
    return FACTS.get(name) or next((family for family in FAMILIES if name.startswith(family.name)), None)


def is_known_fact(name: str) -> bool:
    """Returns whether a run has a fact of that name without plugins."""
    spec = find_fact(name)
    if spec is None or name in FACTS or name in SLOTS:
        return spec is not None or name in SLOTS
    if spec.name == "typed.":
        return is_slot(name.removeprefix(spec.name))
    return spec.name not in ("engine.", "env.") or is_slot(slot_around(name))


def assumed_as(name: str) -> str:
    """Returns the name under which ``--assume`` takes a fact; empty if it does not."""
    for prefix, short in (("packages.", ""), (CPU, "cpu"), (GPU, "gpu")):
        if name.startswith(prefix):
            return short or name.removeprefix(prefix)
    return name if name == "platform" or name in ASSUMABLE else ""


def always_known(name: str) -> bool:
    """Returns whether every run knows the fact (also as absent), so that a condition on it is never unknown."""
    spec = find_fact(name)
    return slot_around(name) in SLOTS or (is_known_fact(name) and spec is not None and not spec.unknown)
