"""The types of the kit, for the annotations of scenarios; at run time these names are empty.

A declaration must not import our package `worker`, which would take the place of a trainer's own ``worker.py``. A scenario that
makes such an object imports its class itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.lab.kit.lab import Generated as Generated
    from worker.lab.kit.lab import Lab as Lab
    from worker.lab.kit.lab import Outcome as Outcome
else:

    def __getattr__(name: str) -> Any:
        if name not in ("Generated", "Lab", "Outcome"):
            raise AttributeError(name)
        return Any
