"""The name of our weight-transfer backend, and its registration with vLLM.

Imports vLLM to register. `register` is a ``vllm.general_plugins`` entry point: it runs in the driver, in each engine core and
in each worker, for every engine on the machine. It therefore names the engine class by module path only; torch and safetensors
are imported (by `worker.refit.engine.transfer_engine`) only in workers whose engine uses this backend:

    AsyncEngineArgs(..., weight_transfer_config={"backend": BACKEND})
"""

from __future__ import annotations

#: Value of ``weight_transfer_config.backend`` that selects our engine.
BACKEND = "model_quirks"

_registered = False


def register() -> None:
    """Registers the engine behind `BACKEND` with vLLM.

    vLLM may call plugins several times in one process; every call but the first does nothing.

    Raises:
        ImportError: vLLM is missing, or older than its native weight transfer.
        ValueError: Another package has taken the name in this process.
    """
    global _registered
    if _registered:
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine(BACKEND, "worker.refit.engine.transfer_engine", "RefitEngine")
    _registered = True
