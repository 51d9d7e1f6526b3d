"""Acme's MoE: its router captures stale buffers in CUDA graphs.

What happens: from the second step on, tokens go to the experts of the first step.

What this changes: eager execution, in float32.

When it can go: when Acme's router allocates its buffers per step.

Evidence: seen in Acme's own training runs; there is no public checkpoint to run.
"""

from quirks_core import ModelFlag, Quirk, Require, Severity, model_type, no, report, unknown, yes

QUIRK = Quirk(
    id="acme-eager",
    title="Acme's router reads stale buffers in CUDA graphs",
    flag=ModelFlag.ENFORCE_EAGER,
    match=model_type("acme_moe"),
    adjustments=[
        Require("engine.enforce_eager", True, remedy="leave engine.enforce_eager open"),
        Require("engine.dtype", "float32", reason="the router's logits overflow in half precision"),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("https://example.org/acme/1"),
    examples=[yes("acme_moe"), no("llama"), unknown()],
    cost="no CUDA graphs",
)
