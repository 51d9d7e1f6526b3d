"""Takes the id of a built-in quirk."""

from quirks_core import Advise, Quirk, Severity, model_type, report

QUIRK = Quirk(
    id="gemma4-layer-scalar",
    title="Not the built-in one",
    flag="weight_sync",
    match=model_type("gemma4"),
    adjustments=Advise("mine is better"),
    severity=Severity.NOISE,
    references=report("https://example.org/acme/6"),
)
