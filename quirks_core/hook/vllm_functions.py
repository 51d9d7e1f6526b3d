"""What of vLLM the hook rests on: functions, their first parameters, and the versions that were read."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType

from quirks_core.facts.model_runner import release_read
from quirks_core.facts.packages import NEWEST_READ, OLDEST_READ, installed_version
from quirks_core.source.vllm_source import INSTALLED, VllmSource

#: The functions that are wrapped or called, each with the names of its first parameters, in all releases that were read.
SEAMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vllm.engine.arg_utils:EngineArgs.create_engine_config": ("self", "usage_context", "headless"),
        "vllm.engine.arg_utils:EngineArgs.from_cli_args": ("cls", "args"),
        "vllm.utils.argparse_utils:FlexibleArgumentParser.parse_args": ("self", "args", "namespace"),
        "vllm.v1.executor.abstract:Executor.__init__": ("self", "vllm_config"),
        "vllm.v1.executor.abstract:Executor.initialize_from_config": ("self", "kv_cache_configs"),
        "vllm.v1.executor.abstract:Executor.collective_rpc": ("self", "method", "timeout", "args", "kwargs"),
        "vllm.v1.worker.worker_base:WorkerWrapperBase.init_worker": ("self", "all_kwargs"),
        "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device": ("self",),
    }
)


def problem(version: str | None = None, source: VllmSource = INSTALLED) -> str | None:
    """Returns why the hook cannot be put on vLLM; None if it can. Reads source, imports nothing."""
    text = version or installed_version("vllm")
    if release_read(text) is None:
        low, high = (".".join(map(str, one)) for one in (OLDEST_READ, NEWEST_READ))
        return f"vLLM {text or 'of an unknown version'} is none of {low} to {high}, for which the hook was written"
    for target, wanted in SEAMS.items():
        node = source.statement(target)
        if not isinstance(node, ast.FunctionDef):
            return f"vLLM {text} has no {target}"
        found = tuple(one.arg for one in (*node.args.posonlyargs, *node.args.args))
        if found[: len(wanted)] != wanted:
            return f"{target} of vLLM {text} takes ({', '.join(found)}) instead of ({', '.join(wanted)})"
    return None
