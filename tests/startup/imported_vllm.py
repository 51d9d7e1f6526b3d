"""What every engine imports, once for all that are forked from this process; see `fork_server`."""

import gc
import multiprocessing
import sys
from unittest import mock

import vllm.entrypoints.cli.main
import vllm.entrypoints.llm
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.qwen3
import vllm.v1.engine.async_llm
import vllm.v1.engine.core
import vllm.v1.executor.uniproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401 - to have it imported
from vllm.model_executor.models import registry

#: This process, as `multiprocessing` knows the first one of a program.
MAIN = multiprocessing.current_process()
#: Where a program that is forked finds what it imports, beside its own folders.
PATH = tuple(sys.path)
#: Models of tests in which other processes start engines.
_MODELS = ("Gemma3ForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")

# VLLM starts a Python of 6 s for what it has to know of a model's class, and keeps it in its cache: so it is there for all.
with mock.patch.object(registry, "_run_in_subprocess", lambda function: function()):
    for model in _MODELS:
        registry.ModelRegistry.models[model].inspect_model_cls()

gc.freeze()
