"""Declares a quirk under an id that acme-quirks has."""

from quirks_core import Advise, Quirk, Severity, model_type, report

QUIRK = Quirk(
    id="acme-eager",
    title="Zeta's idea of Acme's router",
    flag="enforce_eager",
    match=model_type("acme_moe"),
    adjustments=Advise("do not use it"),
    severity=Severity.NOISE,
    references=report("https://example.org/zeta/1"),
)
