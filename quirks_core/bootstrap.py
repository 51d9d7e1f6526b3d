"""Runs inside every vLLM process, as a ``vllm.general_plugins`` entry point: carries out the plan, if there is one.

vLLM loads it in each of its processes, with or without a plan, so it imports nothing that it may not need.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from quirks_core.apply.handed_down import CARRIED, HOOK_VARIABLE, PLAN_VARIABLE

#: Calls between vLLM's function that has a configuration and ours, at most: it loads plugins in the first lines.
_NEAR = 8


def bootstrap() -> None:
    """Carries out the plan that was handed down to this process; without one, does nothing. A second call changes nothing.

    A plan comes in the engine's configuration. The hook is put on here, too, if MODEL_QUIRKS requests it.

    Raises:
        QuirksError: The plan cannot be carried out here, or a variable of ours has a value that it cannot have. vLLM lets it
            through, so the engine does not start.
    """
    carried = _carried()
    if carried is None and PLAN_VARIABLE not in os.environ and not os.environ.get(HOOK_VARIABLE):
        return
    from quirks_core.hook.start import start

    start(carried)


def _carried() -> Any:
    """Finds what a plan left in the configuration of the engine that is loading plugins; None in any other process.

    An engine's core and its workers load plugins first thing, also on nodes whose environment has nothing of ours.
    """
    frame = sys._getframe(1)
    for _ in range(_NEAR):
        if (caller := frame.f_back) is None:
            return None
        frame = caller
        more = getattr(frame.f_locals.get("vllm_config"), "additional_config", None)
        if isinstance(more, dict) and CARRIED in more:
            return more[CARRIED]
    return None
