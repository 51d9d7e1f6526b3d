"""``quirks list --stage …``: which quirks are active, dormant on the installed engine, or expired, and how that is known."""

from __future__ import annotations

import json
from collections.abc import Iterable

from quirks_core.plan.loaded import Loaded
from quirks_core.plan.switches import Switches
from quirks_core.plugins.lifecycle import SUPPORTED_FLOOR, Lifecycle, Stage, lifecycle
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.terminal import Screen

#: The stages in the order in which they are shown, each with its meaning; what calls for action comes last.
_STAGES = {
    Stage.ACTIVE: "not known to be fixed in the installed version",
    Stage.DORMANT: "the installed version is not affected",
    Stage.EXPIRED: "no supported version is affected",
}


def list_stages(wanted: str, kind: str | None = None, *, as_json: bool) -> int:
    """Lists quirks by their stage, with the evidence; 1 if an expired one is listed.

    Args:
        wanted: A stage, or "any".
        kind: The quirks of this kind; all if None.
        as_json: Print JSON.
    """
    registry = Registry.load(switches=Switches.gather())
    every = [(item, lifecycle(item)) for item in registry.loaded]
    stages = [(item, found) for item, found in every if wanted in ("any", found.stage) and kind in (None, item.quirk.kind)]
    if as_json:
        rows = [
            {
                "id": item.quirk.id,
                "distribution": item.distribution,
                "version": item.version,
                "entry_point": item.entry_point,
                "title": item.quirk.title,
                "flag": item.quirk.flag,
                "kind": item.quirk.kind,
                "stage": found.stage.value,
                "evidence": found.evidence,
            }
            for item, found in stages
        ]
        print(json.dumps(rows, indent=2, sort_keys=True))
    else:
        _show(Screen(), stages)
    return 1 if any(found.stage is Stage.EXPIRED for _, found in stages) else 0


def _show(screen: Screen, stages: Iterable[tuple[Loaded, Lifecycle]]) -> None:
    order = list(_STAGES)
    for item, found in sorted(stages, key=lambda pair: order.index(pair[1].stage)):
        evidence = found.evidence or ("every version is affected, and no evidence is declared",)
        screen.findings([Finding(found.stage, f"{item.quirk.id} ({item.quirk.kind})", _STAGES[found.stage], evidence)])
    floors = ", ".join(f"{package} {version}" for package, version in SUPPORTED_FLOOR.items())
    screen.say(f"[dim]oldest supported: {floors}[/]")
