"""What we add to vLLM's worker class, through its own ``worker_extension_cls``: one door for calls of our own.

No name may be one that the worker has already, private ones included. Imports vLLM to put its configuration in force.
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from quirks_core.base.errors import QuirksError, words

_LOG = logging.getLogger("model_quirks")
#: Where the functions are that may be called, so that the door opens to nothing else.
_PACKAGE = "worker."


class WorkerCalls:
    """Lets the driver call our functions in every worker; all arguments and answers are plain values."""

    vllm_config: Any

    def call_of_ours(self, function: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a function of this package with this worker.

        What goes wrong is part of the answer: at the first worker that raises, vLLM stops to read answers, and takes those
        of the other workers for answers to its next question.

        Args:
            function: ``package.module:name``.
            arguments: What it gets after the worker.
            named: What it gets by name.

        Returns:
            ``value``; or ``error``, with the name of its class as ``kind``.
        """
        from vllm.config import set_current_vllm_config

        try:
            if not function.startswith(_PACKAGE):
                raise QuirksError(f"{function} is no function of ours")
            with set_current_vllm_config(self.vllm_config):
                return {"value": pkgutil.resolve_name(function)(self, *arguments, **named)}
        except QuirksError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            _LOG.exception("%s failed", function)
            return {"error": words(error), "kind": ""}
