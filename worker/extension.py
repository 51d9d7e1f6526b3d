"""What we add to vLLM's worker class, through its own ``worker_extension_cls``: a report of the configuration it runs with."""

from __future__ import annotations

from typing import Any

from quirks_core import bootstrap
from worker.vllm_adapter import read_configuration


class ConfigurationReport:
    """Lets the driver ask every worker what it runs with; the answer goes beside the worker's acknowledgement."""

    vllm_config: Any

    def report_configuration(self) -> None:
        """Acknowledges once more, with the values that this worker's own configuration holds."""
        bootstrap.report_configuration(read_configuration(self.vllm_config))
