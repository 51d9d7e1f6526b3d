"""A refit audit in a terminal, as lines that also fit into 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from quirks_core.reporting.terminal import Screen, line
from worker.lab.audit.records import Audit, Hazard


def show_audit(screen: Screen, audit: Audit) -> None:
    """Prints an audit: each kind of hazard, what was refused, the verdict."""
    if audit.hazards:
        _show_hazards(screen, audit)
    for refit in audit.refits:
        if refit.refused:
            screen.say(f"[yellow]refused[/] after refit '{line(refit.label)}': {line(refit.refused)}")
    screen.say(verdict(audit))


def verdict(audit: Audit) -> str:
    """Returns the result of an audit in one line, with rich's markup."""
    model = line(audit.model)
    if audit.clean:
        return f"[green]clean[/] {model}: a refit of parameters leaves nothing wrong"
    if audit.passed:
        by = ", ".join(sorted({name for hazard in audit.hazards for name in hazard.covered_by})) or "the plan"
        return f"[green]covered[/] {model}: with the plan in force everything is right ({line(by)})"
    open_ = [hazard for hazard in audit.hazards if not hazard.is_covered]
    if open_:
        return f"[bold red]hazards[/] {model}: nothing covers {len(open_)} of {len(audit.hazards)} (quirks new starts a quirk)"
    return f"[bold red]hazards[/] {model}: a refit leaves something wrong that no tensor shows, or that the plan causes"


def _show_hazards(screen: Screen, audit: Audit) -> None:
    versions = ", ".join(f"{name} {text}" for name, text in sorted(audit.versions.items()) if name != "ray")
    screen.say(f"[bold]{line(audit.model)}[/] ({line(audit.model_type)}): what refits without quirks leave wrong")
    screen.say(f"[dim]{line(versions)}; platform {line(audit.platform)}; plan {audit.plan[:12]}; {audit.seconds:.0f} s[/]")
    for group in groups(audit.hazards):
        screen.print()
        _show_group(screen, group)
    screen.print()


def groups(hazards: Iterable[Hazard]) -> list[list[Hazard]]:
    """Groups hazards whose names differ only in numbers: those of layers and experts."""
    found: dict[tuple[object, ...], list[Hazard]] = {}
    for hazard in hazards:
        name = re.sub(r"\d+", "*", hazard.name)
        key = (name, hazard.kind, hazard.module_class, hazard.persistent, hazard.after, hazard.planned, hazard.covered_by)
        found.setdefault(key, []).append(hazard)
    return list(found.values())


def _show_group(screen: Screen, group: list[Hazard]) -> None:
    first = group[0]
    many = f" ({len(group)} of them)" if len(group) > 1 else ""
    kind = f"{'' if first.persistent else 'non-persistent '}{first.kind}"
    shape = f" {list(first.shape)}" if first.kind != "computation" else ""
    what = line(f"{kind}{shape} of {first.module_class.rpartition('.')[2]}")
    screen.say(f"[bold]{line(first.name)}[/]{many}: {what}", indent=2)
    held = line(", ".join(first.checkpoint)) or ("yes" if first.in_checkpoint else "no")
    screen.say(line(first.problem), indent=4)
    screen.say(f"[dim]after refit: {line(', '.join(first.after))}; in the checkpoint: {held}[/]", indent=4)
    if first.is_covered:
        screen.say(f"[green]covered by {line(', '.join(first.covered_by)) or 'the plan'}[/]", indent=4)
    else:
        stays = "no quirk covers it" if first.planned is None else "it stays with the plan in force"
        screen.say(f"[bold red]{stays}[/]; {line(first.remedy)}", indent=4)
