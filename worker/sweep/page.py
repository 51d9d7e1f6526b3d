"""The page of a sweep: a table of all rows, and why every row that is not right is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from worker.sweep.explanations import EXPLANATIONS
from worker.sweep.models import KINDS
from worker.sweep.records import Row, Stage, Sweep, Tokens, Verdict
from worker.testing.proof import PACKAGES

#: Characters of an error that are shown.
_MOST = 300

_HEAD = """\
# Sweep

Made by `make sweep`; not edited by hand.
{versions}

Does a refit work for your architecture? Each row is a tiny random model of one kind: two layers, 64 wide, 512 tokens, float32.
An engine starts from dummy weights, eager and with all its quirks, takes the weights of a transformers model, and generates
{total} greedy tokens; then it takes other weights and generates again.

- *first* and *second* count the tokens that are transformers', after each refit.
- *logprobs* is the largest difference to transformers' logprobs of the engine's tokens, in nats.
- *audit* compares all tensors and layers after a refit with those of the checkpoint as vLLM loads it, like `quirks audit`.

Where that does not end well, a second engine loads the checkpoint from disk, without a refit. It tells a broken refit from a
model that vLLM computes otherwise than transformers. A colon marks a variant of a model type. Architectures that are not here
have no class in transformers, are multimodal, or have no tiny configuration in `worker/sweep/models.py` yet.

{count}{missing}

| verdict | rows | meaning |
|---|---:|---|
{verdicts}

Quirks in every plan, which the table leaves out: {common}."""

_MEANINGS = {
    Verdict.RIGHT: "all tokens are transformers' after both refits, and the audit finds nothing",
    Verdict.REFUSED: "a quirk refuses the run before anything starts, and says why",
    Verdict.UNFINISHED: "it took too long, or was killed; the next sweep tries again",
    Verdict.NOT_BUILT: "transformers cannot make, save and load such a model",
    Verdict.NO_START: "the engine does not start; it says so with an error",
    Verdict.ERROR_FROM_DISK: "the engine starts and fails later, with and without refits; it says so with an error",
    Verdict.OTHER_FROM_DISK: "vLLM computes something else than transformers, without any refit; nothing says so",
    Verdict.REFIT_FAILS: "a refit fails with an error, where a load from disk is right",
    Verdict.REFIT_WRONG: "a refit leaves something wrong without an error, where a load from disk is right",
}


def explanation(row: Row) -> str:
    """Says why a row is not right, as Markdown; empty if nobody has found out, and for a row that is right."""
    if row.verdict is Verdict.RIGHT:
        return ""
    if row.kind in EXPLANATIONS:
        return EXPLANATIONS[row.kind]
    return f"Refused by {', '.join(map(_link, row.run.refusals))}." if row.verdict is Verdict.REFUSED else ""


def unexplained(sweep: Sweep) -> list[str]:
    """Names the kinds whose rows are neither right nor explained."""
    return [row.kind for row in sweep.rows if row.verdict is not Verdict.RIGHT and not explanation(row)]


def markdown(sweep: Sweep) -> str:
    """Returns the page."""
    planned = [set(row.run.quirks) for row in sweep.rows if row.run.quirks]
    common = set.intersection(*planned) if planned else set()
    count = Counter(row.verdict for row in sweep.rows)
    missing = [kind for kind in KINDS if kind not in {row.kind for row in sweep.rows}]
    totals = [tokens.total for row in sweep.rows for tokens in (row.run.first, row.run.second) if tokens]
    head = _HEAD.format(
        versions="; ".join(dict.fromkeys(map(_versions, sweep.rows))) + ".",
        total=max(totals, default=0),
        missing=f" Not run yet: {', '.join(missing)}." if missing else "",
        count=f"{len(sweep.rows)} kinds, {count[Verdict.RIGHT]} right.",
        verdicts="\n".join(f"| {verdict} | {count[verdict]} | {_MEANINGS[verdict]} |" for verdict in Verdict if count[verdict]),
        common=", ".join(map(_link, sorted(common))) or "none",
    )
    lines = [
        head,
        "",
        "| kind | architecture | verdict | started | first | second | logprobs | audit | quirks in the plan |",
        "|---|---|---|---|---:|---:|---:|---|---|",
        *(_line(row, common) for row in sweep.rows),
        "",
        "## What is not right, and why",
    ]
    for row in sweep.rows:
        if row.verdict is not Verdict.RIGHT:
            lines += ["", f"**{row.kind}** ({row.verdict}): {explanation(row) or 'nobody has found out yet.'}", *_seen(row)]
    return "\n".join(lines) + "\n"


def _versions(row: Row) -> str:
    versions = ", ".join(f"{name} {row.depends.get(name, '')}" for name in PACKAGES)
    return f"Platform {row.depends.get('platform', '')}: {versions}"


def _line(row: Row, common: set[str]) -> str:
    run = row.run
    started = "no" if run.stage in (Stage.BUILD, Stage.PLAN, Stage.START) else "yes"
    audit = "" if run.differs is None else f"{len(run.differs)} differ" if run.differs else "clean"
    apart = [tokens.logprobs for tokens in (run.first, run.second) if tokens]
    largest = "" if not apart else "NaN" if None in apart else f"{max(value for value in apart if value is not None):.0e}"
    quirks = ", ".join(map(_link, sorted(set(run.quirks) - common)))
    cells = (row.kind, run.architecture, row.verdict, started, _count(run.first), _count(run.second), largest, audit, quirks)
    return f"| {' | '.join(cells)} |"


def _count(tokens: Tokens | None) -> str:
    return f"{tokens}" if tokens else ""


def _seen(row: Row) -> Iterator[str]:
    """Yields what was seen, beside the table: errors, tensors, and the engine that loaded the checkpoint."""
    run, disk = row.run, row.disk
    found = [f"{run.stage}: {_code(run.error)}"] if run.error and not run.refusals else []
    found += [f"differs after a refit: {_code(', '.join(run.differs))}"] if run.differs else []
    found += [f"not audited: {_code(run.audit_error)}"] if run.audit_error else []
    if disk is not None:
        layer = f", first layer that differs: {_code(disk.layer)}" if disk.layer else ""
        found.append(f"from disk: {_code(disk.error) if disk.error else disk.first}{layer}")
    yield from (f"- {text}" if index else f"\n- {text}" for index, text in enumerate(found))


def _link(quirk: str) -> str:
    return f"[{quirk}](quirks/{quirk}.md)"


def _code(text: str) -> str:
    short = text if len(text) <= _MOST else f"{text[:_MOST]}…"
    return f"`{' '.join(short.replace('`', chr(39)).split())}`"
