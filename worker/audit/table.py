"""A refit audit in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from worker.audit.coverage import remedy
from worker.audit.records import Audit, Disagreement, Hazard, Logits


def show_audit(console: Console, audit: Audit) -> None:
    """Prints an audit: a row for every kind of hazard, the logprobs, what to write if nothing covers it, the verdict."""
    if audit.hazards:
        console.print(_table(audit))
    for refit in audit.refits:
        if refit.refused:
            console.print(f"[yellow]refused[/] after refit '{refit.label}': {escape(refit.refused)}", soft_wrap=True)
    if audit.disagreement is not None:
        console.print(_disagreement(audit.disagreement), highlight=False, soft_wrap=True)
    for title, logits in (("without quirks", audit.logits), ("with the plan in force", audit.planned_logits)):
        if logits is not None:
            console.print(f"logprobs after a refit {title}: {_logits(logits)}", highlight=False, soft_wrap=True)
    if audit.skeleton:
        console.print("to begin a quirk with (quirks new makes the package around it):", soft_wrap=True)
        console.print(f"[dim]{escape(audit.skeleton)}[/]", highlight=False, soft_wrap=True)
    console.print(verdict(audit), highlight=False, soft_wrap=True)


def verdict(audit: Audit) -> str:
    """Says in one line how an audit ended, with rich's markup."""
    model = escape(audit.model)
    if audit.clean:
        return f"[green]clean[/] {model}: a refit of parameters leaves nothing wrong"
    if audit.passed:
        by = ", ".join(sorted({name for hazard in audit.hazards for name in hazard.covered_by})) or "the plan"
        return f"[green]covered[/] {model}: with the plan in force everything is right ({escape(by)})"
    open_ = [hazard for hazard in audit.hazards if not hazard.is_covered]
    if open_:
        return f"[bold red]hazards[/] {model}: nothing covers {len(open_)} of {len(audit.hazards)}"
    return f"[bold red]hazards[/] {model}: a refit leaves something wrong that no tensor shows, or that the plan brings in"


def _table(audit: Audit) -> Table:
    versions = ", ".join(f"{name} {text}" for name, text in sorted(audit.versions.items()) if name != "ray")
    table = Table(
        title=f"{escape(audit.model)} ({escape(audit.model_type)}): what refits without quirks leave wrong",
        caption=f"{versions}; platform {audit.platform}; plan {audit.plan[:12]}; {audit.seconds:.0f} s",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("what", "how it differs", "covered by"):
        table.add_column(heading, overflow="fold")
    for group in groups(audit.hazards):
        table.add_row(*_row(group))
    return table


def groups(hazards: Iterable[Hazard]) -> list[list[Hazard]]:
    """Puts hazards together that differ by numbers in their names alone: layers, and experts."""
    found: dict[tuple[object, ...], list[Hazard]] = {}
    for hazard in hazards:
        name = re.sub(r"\d+", "*", hazard.name)
        key = (name, hazard.kind, hazard.module_class, hazard.persistent, hazard.after, hazard.planned, hazard.covered_by)
        found.setdefault(key, []).append(hazard)
    return list(found.values())


def _row(group: list[Hazard]) -> Iterable[str]:
    first = group[0]
    many = f" ({len(group)} of them)" if len(group) > 1 else ""
    kind = f"{'' if first.persistent else 'non-persistent '}{first.kind}"
    shape = f" {list(first.shape)}" if first.kind != "computation" else ""
    yield f"{escape(first.name)}{many}\n[dim]{kind}{escape(shape)} of {escape(first.module_class.rpartition('.')[2])}[/]"
    held = escape(", ".join(first.checkpoint)) or ("yes" if first.in_checkpoint else "no")
    after = f"after refit: {', '.join(first.after)}"
    yield f"{escape(first.problem)}\n[dim]{after}; in the checkpoint: {held}[/]"
    if first.is_covered:
        yield f"[green]{escape(', '.join(first.covered_by)) or 'the plan'}[/]\n[dim]gone with it[/]"
    else:
        stays = "no quirk covers it" if first.planned is None else "it stays with the plan in force"
        yield f"[bold red]{stays}[/]\n[dim]{escape(remedy(first))}[/]"


def _disagreement(found: Disagreement) -> str:
    """Says that the engine's model differs before any refit, and in which layer."""
    logits = found.logits
    apart = f"up to {logits.max_abs_delta:.3g} nats" if logits.nonfinite < logits.tokens else "NaN or infinity"
    where = (
        f"the first layer that differs is {found.layer}"
        if found.layer
        else f"the outputs of all {found.compared} layers agree, so the difference is in the final norm or the head"
        if found.compared
        else "compiled layers cannot be compared; --set engine.enforce_eager=true names the first layer that differs"
    )
    return (
        f"[bold red]not the refit[/]: the engine's model itself, loaded from disk, differs from transformers by {apart} "
        f"(tolerance {logits.tolerance:g}); {escape(where)}"
    )


def _logits(logits: Logits) -> str:
    colour, word = ("green", "as equal weights have them") if logits.close else ("bold red", "other weights")
    if logits.nonfinite == logits.tokens:
        return f"[{colour}]{word}[/]: {logits.tokens} tokens, and no logprob is a number"
    odd = f", {logits.nonfinite} not finite" if logits.nonfinite else ""
    largest = f"at most {logits.max_abs_delta:.3g} nats apart, {logits.mean_abs_delta:.3g} on average"
    return f"[{colour}]{word}[/]: {logits.tokens} tokens, {largest}{odd} (tolerance {logits.tolerance:g})"
