"""The worker's side of a refit: loads one safetensors file into the running model.

Import this module through vLLM's factory only (see `worker.transfer`): it imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class SafetensorsInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on beforehand; the handshake may be left out."""


@dataclass
class SafetensorsUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where the weights of one update, or of one part of it, lie.

    Attributes:
        path: Absolute path of a safetensors file that every worker process can read. It must not be changed in place
            before the update is finished: its tensors are mapped into memory, not copied.
    """

    path: str


class SafetensorsTransferEngine(WeightTransferEngine[SafetensorsInitInfo, SafetensorsUpdateInfo]):  # type: ignore[misc]
    """Streams a file of tensors in checkpoint names through vLLM's layerwise reload.

    The reload re-runs each layer's processing (packing, quantisation) on the new weights and copies the result into
    the tensors that the engine already runs on, so captured CUDA graphs stay valid.

    A file that is missing or broken is found out before the model is touched: the update fails and the engine keeps
    serving the old weights. If loading itself fails, the model holds old and new weights side by side; a further
    update with all weights repairs it.
    """

    init_info_cls = SafetensorsInitInfo
    update_info_cls = SafetensorsUpdateInfo
    supports_draft_weight_update = False

    #: Whether the model's layers are between the two ends of a layerwise reload.
    _reloading = False

    def init_transfer_engine(self, init_info: SafetensorsInitInfo) -> None:
        """Does nothing: a file needs no rendezvous."""

    def start_weight_update(self) -> None:
        """Does nothing yet: the layers are made ready once there is a file to load."""

    def receive_weights(self, update_info: SafetensorsUpdateInfo) -> None:
        """Loads one file; may be called several times between start and finish.

        Args:
            update_info: The file.

        Raises:
            ValueError: The path is not absolute, or the file is not a complete safetensors file.
            FileNotFoundError: There is no such file on this worker's host.
        """
        path = Path(update_info.path)
        if not path.is_absolute():
            raise ValueError(f"weight update: {str(path)!r} must be an absolute path")
        if not path.is_file():
            raise FileNotFoundError(
                f"weight update: no file {str(path)!r} in the worker process; "
                "trainer and workers must share the file system that it is on"
            )
        try:
            # Opening checks that the header is sound and that all tensors lie within the file.
            file = safe_open(path, framework="pt", device="cpu")
        except SafetensorError as error:
            raise ValueError(f"weight update: {str(path)!r} is not a complete safetensors file: {error}") from error
        with file:
            self._load(file)

    def finish_weight_update(self) -> None:
        """Processes what is left and puts the weights in force."""
        self._end_reload()

    def shutdown(self) -> None:
        """Does nothing: no connection is held."""

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
        """Abstract in vLLM 0.26, gone later; our trainers write the file with `worker.refit.write`.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("write the file with worker.refit.write and pass its path to update_weights")

    def _load(self, file: Any) -> None:
        """Loads every tensor of an open file; ends the reload if that fails, so that a later update starts clean."""
        if not self._reloading:
            initialize_layerwise_reload(self.model)
            self._reloading = True
        try:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        except BaseException:
            # vLLM forgets the session but leaves half-filled layers behind, which the next update would add to.
            self._end_reload()
            raise

    def _end_reload(self) -> None:
        if self._reloading:
            self._reloading = False
            finalize_layerwise_reload(self.model, self.model_config)
