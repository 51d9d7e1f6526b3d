"""Shows plans and receipts to a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quirks_core.plan import Plan, State, Status, Verdict
from quirks_core.receipt import Receipt

_COLOURS = {
    Status.APPLIED: "green",
    "already set": "green",
    "kept user": "yellow",
    "outranked": "yellow",
    State.DORMANT: "cyan",
    State.DISABLED: "yellow",
    State.SUPERSEDED: "cyan",
    State.UNKNOWN: "yellow",
    "refused": "bold red",
}


def show_plan(console: Console, plan: Plan, *, title: str | None = None) -> None:
    """Prints a plan: a row for every quirk that concerns the run, then warnings and refusals."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(plan.context.packages.items()) if name != "ray")
    table = Table(
        title=title or f"{plan.context.model.name} ({plan.context.model.model_type}), purpose {plan.context.purpose}",
        caption=f"{versions}; platform {plan.context.platform}; plan {plan.digest[:12]}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("quirk", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what and why", overflow="fold")
    quiet = 0
    for verdict in plan.verdicts:
        if verdict.state is State.NOT_MATCHED:
            quiet += 1
            continue
        for state, what, why in _rows(plan, verdict):
            colour = _COLOURS.get(state, "red")
            table.add_row(escape(verdict.id), f"[{colour}]{state}[/]", f"{escape(what)}\n[dim]{escape(why)}[/]")
    console.print(table)
    console.print(f"{quiet} other quirks do not concern this run (quirks explain ID says why)", style="dim")
    for warning in plan.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)
    for refusal in plan.refusals:
        console.print(f"[bold red]refused:[/] {escape(str(refusal))}", soft_wrap=True)


def _rows(plan: Plan, verdict: Verdict) -> Iterator[tuple[str, str, str]]:
    """State, what and why of everything that a quirk does to a run."""
    if verdict.state is not State.ACTIVE:
        yield verdict.state, "nothing", verdict.because
        return
    seen = False
    for item in plan.adjustments:
        for quirk in item.quirks:
            if quirk.id == verdict.id:
                seen = True
                state = "refused" if item.status in (Status.REFUSED, Status.CONFLICT) else item.status.replace("_", " ")
                yield state, item.wanted, quirk.reason
    for patch in plan.patches:
        if patch.quirk.id == verdict.id:
            seen = True
            yield Status.APPLIED, f"patch {patch.target.rpartition('.')[2]}", patch.quirk.reason
    for refusal in plan.refusals:
        if refusal.kind in ("refuse", "drift", "broken") and any(quirk.id == verdict.id for quirk in refusal.quirks):
            seen = True
            yield "refused", "the run", refusal.reason
    if not seen:
        yield Status.APPLIED, "a warning", verdict.title


def show_receipt(console: Console, receipt: Receipt) -> None:
    """Prints what every process acknowledged and what the engine runs with."""
    table = Table(title="receipt: what every process has", title_justify="left")
    for heading in ("process", "pid", "plan", "effects"):
        table.add_column(heading, overflow="fold")
    for ack in receipt.processes:
        effects = "\n".join(
            f"{item.slot}: {_short(item.before)} → {_short(item.after)}{' (at import)' if item.pending else ''}"
            for item in ack.effects
        )
        table.add_row(escape(ack.process), str(ack.pid), ack.digest[:12], escape(effects) or "none")
    console.print(table)
    engine = Table(title="read back from the engine", title_justify="left")
    for heading in ("slot", "before quirks", "engine"):
        engine.add_column(heading, overflow="fold")
    for item in receipt.engine:
        before = "left open" if item.before is None else str(item.before)
        engine.add_row(item.slot, escape(before), escape(str(item.engine)) + (" (by a quirk)" if item.binding else ""))
    console.print(engine)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 or ":" in text else f"{text[:12]}…"
