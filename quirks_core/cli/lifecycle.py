"""``quirks list --stage …``: which quirks are active, dormant on the installed engine, or expired, and how that is known."""

from __future__ import annotations

import json
from collections.abc import Iterable

from quirks_core.plan.loaded import Loaded
from quirks_core.plan.switches import Switches
from quirks_core.plugins.lifecycle import SUPPORTED_FLOOR, Lifecycle, Stage, lifecycle
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.terminal import Screen, line

#: The stages in the order in which they are shown, each with its colour and its meaning; what calls for action comes last.
_STAGES = {
    Stage.ACTIVE: ("green", "not known to be fixed in the installed version"),
    Stage.DORMANT: ("cyan", "the installed version is not affected"),
    Stage.EXPIRED: ("bold red", "no supported version is affected"),
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
    for stage, (colour, meaning) in _STAGES.items():
        mine = [(item, found) for item, found in stages if found.stage is stage]
        if mine:
            screen.say(f"[{colour}]{stage}[/]: {meaning}")
        for item, found in mine:
            screen.say(f"[bold]{line(item.quirk.id)}[/] [dim]({item.quirk.kind})[/]", indent=2)
            for text in found.evidence or ("every version is affected, and no evidence is declared",):
                screen.say(line(text), indent=4)
    floors = ", ".join(f"{package} {version}" for package, version in SUPPORTED_FLOOR.items())
    screen.say(f"[dim]oldest supported: {floors}[/]")
