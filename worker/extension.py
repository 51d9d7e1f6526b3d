"""What we add to vLLM's worker class, through its own ``worker_extension_cls``: answers about itself and its weights.

No name may be one that the worker has already, private ones included.
"""

from __future__ import annotations

from typing import Any

from quirks_core import bootstrap
from worker.vllm_adapter import read_configuration


class WorkerReports:
    """Lets the driver ask every worker; all answers are plain values."""

    vllm_config: Any
    weight_transfer_engine: Any
    device: Any
    _weight_audit: Any = None

    def report_configuration(self) -> None:
        """Acknowledges once more, with the values that this worker's own configuration holds."""
        bootstrap.report_configuration(read_configuration(self.vllm_config))

    def report_device(self) -> str:
        """Returns what tells this worker's device from all others: a GPU's UUID, else ``cpu``."""
        from worker.refit.buffers import device_id

        return device_id(self.device)

    def report_rank(self) -> int:
        """Returns this worker's rank among all of its engine."""
        return int(self.weight_transfer_engine.rank)

    def report_topology(self) -> dict[str, Any]:
        """Returns this worker's place in every parallel group and the experts it holds, as `worker.topology.Row` has them."""
        from worker import topology

        return topology.read(self)

    def report_refit(self) -> dict[str, Any]:
        """Returns what the last refit did: whether it changed the model, and the parameters that it did not reach."""
        engine = self.weight_transfer_engine
        return {"touched": engine.touched, "unloaded": engine.unloaded}

    def verify_refit(self, update_info: dict[str, Any]) -> dict[str, str]:
        """Compares the model with one that is loaded anew from the same source; returns what differs, by tensor."""
        from vllm.config import set_current_vllm_config

        engine = self.weight_transfer_engine
        with set_current_vllm_config(self.vllm_config):
            return dict(engine.verify(engine.parse_update_info(update_info)))

    def audit_weights(self, step: str) -> list[dict[str, Any]]:
        """Does one step of a refit audit, as `worker.parity.tensor_audit.TensorAudit.step` has it; returns what differs."""
        from vllm.config import set_current_vllm_config

        from worker.parity.tensor_audit import TensorAudit

        if self._weight_audit is None:
            self._weight_audit = TensorAudit(self.vllm_config, self.device)
        with set_current_vllm_config(self.vllm_config):
            return list(self._weight_audit.step(step, self.weight_transfer_engine.model))
