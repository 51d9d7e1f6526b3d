"""Says neither where the problem is reported nor what it adjusts."""

from quirks_core import Quirk, Severity, model_type

QUIRK = Quirk(
    id="broken-declaration",
    title="Something goes wrong",
    flag="sleep",
    match=model_type("acme_moe"),
    adjustments=(),
    severity=Severity.NOISE,
    references=(),
)
