"""A method that every worker of an engine with a plan has: it calls our functions there for the program that drives the engine.

vLLM's ``collective_rpc`` takes the name of a method from another process, and no function.
"""

from __future__ import annotations

import logging
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from quirks_core.base.errors import QuirksError, words

#: The method's name.
METHOD = "call_of_model_quirks"
_LOG = logging.getLogger("model_quirks")
#: Where the functions are that may be called.
_PACKAGE = "worker."


def call(wrapper: Any, function: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Calls a function of ours, ``package.module:name``, with a worker; all arguments and answers are plain values.

    What goes wrong is part of the answer: at the first worker that raises, vLLM stops to read answers, and takes those of the
    other workers for answers to its next question.

    Returns:
        ``value``; or ``error``, with the name of its class as ``kind``.
    """
    try:
        if not function.startswith(_PACKAGE):
            raise QuirksError(f"{function} is no function of ours")
        worker = wrapper.worker
        with sys.modules["vllm.config"].set_current_vllm_config(worker.vllm_config):
            return {"value": pkgutil.resolve_name(function)(worker, *arguments, **named)}
    except QuirksError as error:
        return {"error": str(error), "kind": type(error).__name__}
    except Exception as error:
        _LOG.exception("%s failed", function)
        return {"error": words(error), "kind": ""}
