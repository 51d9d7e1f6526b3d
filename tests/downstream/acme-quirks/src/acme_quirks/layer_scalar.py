"""Acme's refit sends the state dict of every model that has buffers, Gemma 4 among them.

What happens: as for the built-in gemma4-layer-scalar, which this replaces.

What this changes: the scope of a refit.

When it can go: together with the built-in one.

Evidence: that of the built-in one.
"""

from quirks_core import ModelFlag, Quirk, Require, Severity, model_type, no, report, unknown, yes

QUIRK = Quirk(
    id="acme-layer-scalar",
    title="A refit of parameters alone leaves Gemma 4's layer_scalar behind",
    flag=ModelFlag.WEIGHT_SYNC,
    match=model_type("gemma4", "gemma4_text", "acme_gemma"),
    adjustments=Require("refit.scope", "state_dict"),
    severity=Severity.WRONG_OUTPUT,
    references=report("https://example.org/acme/2"),
    supersedes="gemma4-layer-scalar",
    examples=[yes("gemma4"), no("llama"), unknown()],
)
