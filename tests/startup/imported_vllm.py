"""What every engine imports, once for all that are forked from this process; see `fork_server` and `forked_programs`."""

import gc
import importlib
import multiprocessing
import os
import sys
from unittest import mock

#: This process, as `multiprocessing` knows the first one of a program.
MAIN = multiprocessing.current_process()
#: Where a program that is forked finds what it imports, beside its own folders: those of the test that came first are not.
PATH = tuple(entry for entry in sys.path if entry not in os.environ.get("PYTHONPATH", "").split(os.pathsep))

_IMPORTED = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)
#: Models of tests in which other processes start engines.
_MODELS = ("Gemma3ForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")

sys.modules["ray"] = None  # type: ignore[assignment] - Ray keeps variables as they are when it is imported
for name in _IMPORTED:
    importlib.import_module(name)
for name in ("ray", "vllm.v1.executor.ray_utils"):
    del sys.modules[name]

registry = sys.modules["vllm.model_executor.models.registry"]
# VLLM starts a Python of 6 s for what it has to know of a model's class, and keeps it in its cache: so it is there for all.
with mock.patch.object(registry, "_run_in_subprocess", lambda function: function()):
    for name in _MODELS:
        registry.ModelRegistry.models[name].inspect_model_cls()

gc.freeze()
