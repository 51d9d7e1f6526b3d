"""NeMo RL's own vLLM workers with the quirks of their engine: ``policy.generation.worker_extension_cls_fqn`` names one of them.

Everything is theirs, signatures, batches and refits; only the start of the engine is different. Imports ``nemo_rl`` and Ray.
"""

from __future__ import annotations

import os
from typing import Any

import ray
from nemo_rl.distributed.worker_group_utils import get_nsight_config_if_pattern_matches  # type: ignore[import-not-found]
from nemo_rl.models.generation.vllm.vllm_worker import VllmGenerationWorkerImpl  # type: ignore[import-not-found]
from nemo_rl.models.generation.vllm.vllm_worker_async import VllmAsyncGenerationWorkerImpl  # type: ignore[import-not-found]

from quirks_core.apply.handed_down import HOOK_VARIABLE
from quirks_core.facts.trainers import VARIABLE as TRAINER_VARIABLE
from quirks_core.hook.settings import REQUIRE_VARIABLE
from quirks_core.hook.start import start

#: An engine without a receipt does not start; what the user has set stays.
_VARIABLES = {HOOK_VARIABLE: "rollout", TRAINER_VARIABLE: "nemo-rl", REQUIRE_VARIABLE: "1"}


class PlannedEngine:
    """Puts a plan in force before the engine is made; the log has the plan, and the receipt of every process."""

    def _create_engine(self, llm_kwargs: dict[str, Any]) -> None:
        """Makes the engine of the base class.

        Raises:
            RefusedError: The configuration cannot work; the message has all reasons.
            ReceiptError: The plan is not in force in every process.
        """
        for name, text in _VARIABLES.items():
            os.environ.setdefault(name, text)
        start()  # vLLM may have loaded its plugins in this process before there were these variables
        super()._create_engine(llm_kwargs)  # type: ignore[misc]


class VllmGenerationWorkerPlanned(PlannedEngine, VllmGenerationWorkerImpl):  # type: ignore[misc]
    """The synchronous worker."""


class VllmAsyncGenerationWorkerPlanned(PlannedEngine, VllmAsyncGenerationWorkerImpl):  # type: ignore[misc]
    """The asynchronous worker."""


def _actor(kind: type[Any], pattern: str) -> Any:
    return ray.remote(runtime_env={**get_nsight_config_if_pattern_matches(pattern)})(kind)


#: For ``async_engine: false`` and ``true``: NeMo RL takes Ray actor classes.
VllmGenerationWorker = _actor(VllmGenerationWorkerPlanned, "vllm_generation_worker")
VllmAsyncGenerationWorker = _actor(VllmAsyncGenerationWorkerPlanned, "vllm_async_generation_worker")
