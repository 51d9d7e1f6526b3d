"""Wants another dtype for Acme's models than acme-quirks."""

from quirks_core import Quirk, Require, Severity, model_type, report

QUIRK = Quirk(
    id="rival-dtype",
    title="float32 does not fit into the rival's cards",
    flag="lm_head_dtype",
    match=model_type("acme_moe"),
    adjustments=Require("engine.dtype", "bfloat16"),
    severity=Severity.CRASH,
    references=report("https://example.org/rival/1"),
)
