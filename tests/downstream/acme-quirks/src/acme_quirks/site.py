"""What Acme's clusters need: facts of the site, quirks that ask for them, and a log of what was applied.

What happens: between racks a request takes minutes, and the test queue ends jobs that nobody expects to end.

What this changes: the time limit of a request; on the test queue, a warning.

When it can go: when Acme's racks share a switch, and when the test queue is gone.

Evidence: the site's operators say so; no engine is needed to see it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from quirks_core import Advise, Default, Fact, Plan, Quirk, RunContext, Severity, hookimpl, no, report, unknown, yes
from quirks_core.plan.receipt import Receipt

_RACKS, _QUEUE = "acme-quirks.racks", "acme-quirks.queue"


def _patience(context: RunContext) -> float:
    """A quarter of an hour for every rack."""
    return 900.0 * context.extra[_RACKS]


TIMEOUT = Quirk(
    id="acme-quirks/timeout",
    title="Requests across Acme's racks take longer",
    flag="timeout",
    match=Fact(_RACKS).above(1),
    adjustments=Default("request.timeout_s", at_least=_patience),
    severity=Severity.CRASH,
    references=report("https://example.org/acme/3"),
    examples=[yes(extra={_RACKS: 2}), no(extra={_RACKS: 1}), unknown()],
)

QUEUE = Quirk(
    id="acme-quirks/queue",
    title="Acme's test queue is shared",
    flag="acme:queue",
    match=Fact(_QUEUE).one_of("test"),
    adjustments=Advise("the test queue ends every job after an hour"),
    severity=Severity.NOISE,
    references=report("https://example.org/acme/3"),
    examples=[yes(extra={_QUEUE: "test"}), no(extra={_QUEUE: "night"}), unknown()],
)


@hookimpl
def quirks_declare() -> list[Quirk]:
    """Declares both."""
    return [TIMEOUT, QUEUE]


@hookimpl
def quirks_facts(context: RunContext) -> dict[str, object]:
    """Tells where the run is, from the site's own variables."""
    return {
        "racks": int(os.environ.get("ACME_RACKS", "1")),
        "queue": os.environ.get("ACME_QUEUE", "night"),
        "model": context.model.name,
    }


@hookimpl
def quirks_observe(plan: Plan, receipt: Receipt) -> None:
    """Appends a line to the site's log."""
    with Path(os.environ["ACME_LOG"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps({"plan": plan.digest, "processes": len(receipt.processes)}) + "\n")
