"""What ``quirks run`` puts on in every Python process before vLLM is imported; imports next to nothing itself.

Recorders of what the user typed are then in time for the first ``LLM(...)``, too. And an engine core requests its receipt also
where vLLM does not load our plugin, so that nothing keeps quirks out in silence.
"""

from __future__ import annotations

from types import ModuleType

from quirks_core.apply.imports import when_imported
from quirks_core.hook import explicit


def watch() -> None:
    """Puts everything on; a second call changes nothing."""
    explicit.watch()
    when_imported("vllm.v1.executor.abstract", _install_receipts)


def _install_receipts(_: ModuleType) -> None:
    from quirks_core.hook import processes

    processes.install()
