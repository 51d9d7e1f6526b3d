"""The effective settings of a running engine: every setting of its configuration that can affect tokens and logprobs.

It walks whole sections instead of a list of names, so settings that another version of vLLM adds or removes are found.
Imports vLLM to read its variables and its device.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from quirks_core.apply.read_back import UNREADABLE, plain
from quirks_core.configuration.variables import is_secret
from quirks_core.facts.packages import device, installed_versions

#: Sections of vLLM's ``VllmConfig``, and settings outside of them.
_SECTIONS = (
    "attention_config", "cache_config", "compilation_config", "kernel_config", "load_config", "mamba_config", "model_config",
    "parallel_config", "scheduler_config", "speculative_config", "optimization_level", "performance_mode",
)  # fmt: skip
#: Settings that differ between machines or runs, or that only name things; none of them affects a token.
_IGNORED = frozenset(
    {
        "attention_config.hisparse_config",
        "cache_config.gpu_memory_utilization",
        "compilation_config.bs_to_padded_graph_size",
        "compilation_config.compilation_time",
        "compilation_config.compile_cache_save_format",
        "compilation_config.cudagraph_num_of_warmups",
        "compilation_config.disabled_custom_ops",
        "compilation_config.enabled_custom_ops",
        "compilation_config.encoder_compilation_time",
        "compilation_config.static_all_moe_layers",
        "compilation_config.static_forward_context",
        "compilation_config.traced_files",
        "kernel_config.enable_cutedsl_warmup",
        "kernel_config.enable_jit_warmup",
        "load_config.use_tqdm_on_load",
        "model_config.hf_config",  # of the text model there is hf_text_config
        "model_config.hf_overrides",  # part of the configuration, which the settings contain
        "model_config.hf_text_config.id2label",
        "model_config.hf_text_config.label2id",
        "model_config.hf_text_config.transformers_version",
        "model_config.model",
        "model_config.model_weights",
        "model_config.tokenizer",
    }
)
_IGNORED_ENDS = (
    "_addr", "_address", "_bytes", "_cls", "_dir", "_id", "_ip", "_name", "_path", "_port", "_rank", "_rank_local", "_revision",
    "_time", "_timeout", "_token", ".revision", "_blocks", "_port_list", "_size_tokens", "_max_concurrency",
)  # fmt: skip
#: Parts of the names of variables that decide where something is or how it is reported.
_PLACES = {
    "ADDR", "ASSETS", "CACHE", "DIR", "DUMP", "HOST", "IP", "LOG", "NAME", "PATH", "PORT", "ROOT", "SOCKET", "SO", "SOURCE",
    "TIMEOUT", "TRACE", "URI", "URL", "USAGE",
}  # fmt: skip
#: Variables besides vLLM's own that change how numbers are computed; listed where they are set.
_NUMERIC = ("CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_TF32", "OMP_NUM", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_")
_DEEPEST = 3


def effective(vllm_config: Any) -> dict[str, Any]:
    """Returns the settings of an engine by dotted name, as JSON can hold them.

    ``cache_config.enable_prefix_caching`` and the like are paths into the ``VllmConfig``; ``sampling_defaults.temperature``
    is the value for requests that do not set it; ``env.VLLM_…`` is the effective value of a variable, also if it is not set.
    """
    found: dict[str, Any] = {}
    for section in _SECTIONS:
        found.update(_walk(section, getattr(vllm_config, section, UNREADABLE), _DEEPEST))
    model = vllm_config.model_config
    found.update(_walk("model_config.head_dtype", getattr(model, "head_dtype", UNREADABLE), 0))  # a property, no field
    found["quantization"] = type(quantized).__name__ if (quantized := getattr(vllm_config, "quant_config", None)) else None
    if found.get("model_config.generation_config") not in (None, "auto", "vllm"):
        found["model_config.generation_config"] = "a folder"  # which one is this machine's business
    for prefix, values in (("sampling_defaults", model.get_diff_sampling_param()), ("env", variables())):
        for name, value in values.items():
            found.update(_walk(f"{prefix}.{name}", value, 0))
    return dict(sorted(found.items()))


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the environment variables that affect the engine's numbers; vLLM's own also if they are not set."""
    from vllm import envs

    found: dict[str, Any] = {name: value for name, value in environ.items() if name.startswith(_NUMERIC) and _matters(name)}
    for name, read in envs.environment_variables.items():
        if name.startswith("VLLM_") and _matters(name):
            found[name] = read()
    return found


def versions() -> dict[str, str]:
    """Returns the versions of this installation by package, Python's and the device's name among them."""
    ours = {"model-quirks": version("model-quirks"), "python": platform.python_version()}
    return dict(sorted({**installed_versions(), **ours, "device": device() or platform.machine()}.items()))


def _matters(variable: str) -> bool:
    """Whether a variable can affect tokens, and may be shown."""
    return not is_secret(variable) and not _PLACES & set(variable.split("_"))


def _walk(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a configuration, and of the configurations inside of it."""
    if (name in _IGNORED or name.endswith(_IGNORED_ENDS)) and not name.startswith("env."):
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value) if depth else ():
            if not field.name.startswith("_"):
                yield from _walk(f"{name}.{field.name}", getattr(value, field.name, None), depth - 1)
    elif (found := _plain(value)) is not UNREADABLE:
        yield name, found


def _plain(value: Any) -> Any:
    """Returns a value as JSON can hold it, enumeration members by name; `UNREADABLE` for anything else."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name
    return plain(value)
