"""The types of the kit for scenarios: empty names at run time, but for `Outcome`, which imports its class when it is called.

A declaration must not import our package `worker`, which would take the place of a trainer's own ``worker.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.lab.kit.lab import Generated as Generated
    from worker.lab.kit.lab import Lab as Lab
    from worker.lab.kit.lab import Outcome as Outcome
else:

    def _outcome(*args: Any, **kwargs: Any) -> Any:
        from worker.lab.kit.lab import Outcome

        return Outcome(*args, **kwargs)

    def __getattr__(name: str) -> Any:
        if name not in ("Generated", "Lab", "Outcome"):
            raise AttributeError(name)
        return _outcome if name == "Outcome" else Any
