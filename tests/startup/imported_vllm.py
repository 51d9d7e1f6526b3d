"""What every engine imports, once for all that are forked from this process; see `fork_server`."""

import gc

import vllm.model_executor.models.qwen3
import vllm.v1.engine.core
import vllm.v1.executor.uniproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401 - to have it imported

gc.freeze()
