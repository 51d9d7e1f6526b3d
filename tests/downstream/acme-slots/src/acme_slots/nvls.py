"""NVLink multicast hangs on Acme's nodes when several engines start at once.

What happens: NCCL's first collective never returns; the engines wait until the scheduler ends the job.

What this changes: ``NCCL_NVLS_ENABLE=0`` in every engine process.

When it can go: with the driver that Acme installs next.

Evidence: seen by Acme's operators; it takes eight GPUs to see it.
"""

from quirks_core import ModelFlag, Quirk, Require, Severity, no, purpose, report, yes

QUIRK = Quirk(
    id="acme-slots/nvls",
    title="NVLink multicast hangs when several engines start on one node",
    flag=ModelFlag.ENVIRONMENT,
    match=purpose("rollout", "eval"),
    adjustments=Require("env.NCCL_NVLS_ENABLE", "0"),
    severity=Severity.CRASH,
    references=report("https://example.org/acme/20"),
    examples=[yes(), no(purpose="serve")],
)
