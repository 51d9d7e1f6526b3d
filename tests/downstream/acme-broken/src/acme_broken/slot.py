"""Misspells a slot."""

from quirks_core import Default, Quirk, Severity, model_type, report

QUIRK = Quirk(
    id="broken-slot",
    title="Something goes wrong",
    flag="load_format",
    match=model_type("acme_moe"),
    adjustments=Default("engine.load_fromat", "auto"),
    severity=Severity.NOISE,
    references=report("https://example.org/acme/5"),
)
