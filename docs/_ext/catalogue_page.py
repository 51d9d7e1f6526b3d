"""The catalogue: a line for each quirk."""

from __future__ import annotations

from collections.abc import Sequence

from declared import acts_alone, kinds, models, proven, versions
from page_text import page, prose, table

from quirks_core.declaration.flags import Kind
from quirks_core.plan.loaded import Loaded

_SHOWN_MODELS = 2
_MEANINGS = {
    Kind.WORKAROUND: "A workaround cures a defect until evidence retires it.",
    Kind.RULE: "A rule refuses, advises or sets what a limit or definition of vLLM or a trainer asks for.",
    Kind.FEATURE: "A feature is for speed, or is a default of our own.",
}


def catalogue(loaded: Sequence[Loaded]) -> str:
    """Returns the page."""
    workarounds = kinds(loaded, Kind.WORKAROUND)
    advising = [f"`{item.quirk.id}`" for item in workarounds if not acts_alone(item)]
    parts = []
    for kind in Kind:
        found = kinds(loaded, kind)
        rows = [_row(item) for item in found]
        parts += [f"## {kind.capitalize()}s ({len(found)})", _MEANINGS[kind], table(_HEADINGS, rows)]
    return page(
        "Catalogue",
        "*Models* and *versions* of vLLM are those that a quirk concerns; an empty cell is every one. *Proven* is the newest "
        "vLLM on each platform on which [two runs](results/evidence.md), with the quirk and without it, spoke for it; *source* "
        "and *declared* are weaker. `quirks explain ID` has the details, `quirks plan --model M` what concerns your run.",
        f"Under `MODEL_QUIRKS=on` workarounds act without help of the trainer. {', '.join(advising)} only advise, and "
        "`raw-weight-load` warns.",
        '<div id="all-quirks">\n\n' + "\n\n".join(parts) + "\n\n</div>",
    )


_HEADINGS = ("quirk", "without it", "models", "versions", "proven")


def _row(item: Loaded) -> list[str]:
    quirk = item.quirk
    return [
        f"[{quirk.id}](../{quirk.location.file})",
        prose(quirk.title),
        _models(models(quirk)),
        versions(quirk),
        proven(quirk),
    ]


def _models(names: list[str]) -> str:
    more = len(names) - _SHOWN_MODELS
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_SHOWN_MODELS])}, +{more}"
