"""The acknowledgements of all processes, and the values that the engine really uses."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from quirks_core.base.record import Record


class Effect(Record):
    """One change in a process, or a value that was already as planned.

    Attributes:
        slot: ``env.NAME``, or ``patch.`` and the target.
        before: The variable's value; the fingerprint of a target's source.
        after: The variable's value; the source of a patch's code.
        pending: The patch's module is not imported in this process yet.
    """

    slot: str
    before: Any
    after: Any
    pending: bool = False


class Acknowledgement(Record):
    """The acknowledgement of one process.

    Attributes:
        pid: Process id.
        process: Name of the process, for example ``EngineCore_DP0``.
        digest: Digest of the plan that the process applies, computed in the process from what it received.
        effects: The environment variables and patches, with the values before and after.
        engine: Values by slot in the process's own engine configuration; empty if it has none, or none yet.
        host: Name of its machine.
    """

    pid: int
    process: str
    digest: str
    effects: tuple[Effect, ...] = ()
    engine: dict[str, Any] = Field(default_factory=dict)
    host: str = ""


class Receipt(Record):
    """What the processes of one engine carry out.

    Attributes:
        digest: Digest of the plan.
        host: The machine of the engine's core.
        changes: The slots that quirks changed, with their values.
        processes: The engine's core, then its workers; a process that is both is listed once. Their ``engine`` holds the values
            that were read back from their configuration. A worker's receipt begins with the process that made the plan.
    """

    digest: str
    host: str = ""
    changes: dict[str, Any] = Field(default_factory=dict)
    processes: tuple[Acknowledgement, ...]
