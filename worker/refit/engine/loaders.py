"""What stands between a stream and a model: loads every tensor, or copies what a plan copies and loads the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeAlias, TypeVar

import torch

from quirks_core.base.errors import QuirksError, words
from worker.errors import RefitError
from worker.refit.engine.copy_plan import CopyPlan, Tensors
from worker.refit.engine.finite import NotFinite
from worker.refit.engine.recording import Recording
from worker.refit.transport.collective import CollectiveStream
from worker.refit.transport.ipc_zmq import IpcZmqStream

_T = TypeVar("_T")
#: What a transport brings.
Stream: TypeAlias = IpcZmqStream | CollectiveStream
#: Takes note of a tensor that came.
See: TypeAlias = Callable[[str, torch.Tensor], None]


class Loader:
    """Stands before a model and remembers what it loaded, however often ``load_weights`` is called.

    Attributes:
        loaded: The model's own parameters that got a value; None if it does not report them.

    Args:
        model: The model.
        not_finite: Looks at the tensors, if given.
        recording: Watches the tensors, if given.
    """

    def __init__(self, model: torch.nn.Module, not_finite: NotFinite | None = None, recording: Recording | None = None) -> None:
        self._model = model
        self.loaded: set[str] | None = set()
        self._recording = recording
        self._not_finite = not_finite
        self._last = "the first tensor"

    def load_weights(self, tensors: Tensors) -> None:
        """Has the model load some tensors.

        Raises:
            RefitError: The model does not take one of them.
        """
        if self._not_finite is not None:
            tensors = self._not_finite.watch(tensors)
        if self._recording is not None:
            tensors = self._recording.watch(tensors)
        try:
            found = self._model.load_weights(self._noted(tensors))
        except QuirksError:
            raise
        except Exception as error:
            raise RefitError(f"refit: the engine's model does not take {self._last}: {words(error)}") from error
        self.loaded = None if found is None or self.loaded is None else self.loaded | set(found)

    def _noted(self, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            self._last = f"{name}, {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            yield name, tensor


class Copier:
    """Stands before a model, copies what a plan copies, and has the model load the rest.

    Attributes:
        plan: The plan.
        check: Compare what was copied with what the model's loaders would have written.

    Args:
        model: The model.
        plan: The plan.
        not_finite: Looks at what was copied.
        check: As the attribute.
        see: Gets what is copied in another order than its own, which the model's bytes do not show.
    """

    def __init__(
        self, model: torch.nn.Module, plan: CopyPlan, not_finite: NotFinite, *, check: bool, see: See | None = None
    ) -> None:
        self._model = model
        self.plan = plan
        self.check = check
        self._see = see
        self._not_finite = not_finite

    def take(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Copies those of some tensors that are copied, and returns the others."""
        if self._see is not None:
            for name, tensor in tensors:
                if name in self.plan.hidden:
                    self._see(name, tensor)
        self.plan.copy(tensors)
        if self.check:
            self.plan.check(self._model, tensors)
        return ((name, tensor) for name, tensor in tensors if name in self.plan.reloaded)

    def load_borrowed(self, buffers: Iterable[Sequence[tuple[str, torch.Tensor]]]) -> None:
        """Takes all buffers of a stream, each of which is valid until the next is requested."""
        rest = ((name, tensor.clone()) for tensors in buffers for name, tensor in self.take(tensors))
        if self.plan.reloaded:
            self._model.load_weights(self._not_finite.watch(rest))
        else:
            deque(rest, maxlen=0)
        # Not before all is there: some of it may have been received in its place.
        self._not_finite.look(self.plan.written())


def begun(coming: Iterable[_T]) -> Iterator[_T]:
    """Waits until something comes; returns it, and all that follows."""
    rest = iter(coming)
    return chain(list(islice(rest, 1)), rest)


def check_end(stream: Stream) -> None:
    """Makes sure that all of a stream was taken.

    Raises:
        RefitError: It was not.
    """
    if not stream.complete:
        raise RefitError("refit: the model stopped loading before the last tensor")
