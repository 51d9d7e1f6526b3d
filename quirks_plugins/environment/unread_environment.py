"""Environment variables that the user set and the installed vLLM does not read.

What happens: vLLM drops and renames variables between releases. A recipe that still sets the old name is silently without it
(``VLLM_USE_V1``, ``VLLM_ATTENTION_BACKEND``, ``VLLM_USE_FLASHINFER_MOE_FP8`` …); vLLM itself only logs one line.

What this changes: nothing; the plan warns and names them. The names come from the installed engine's own source.
"""

from __future__ import annotations

from quirks_core import Advise, Fact, ModelFlag, Quirk, RunContext, Severity, report


def _message(context: RunContext) -> str:
    names = ", ".join(context.unread_environment or ())
    return f"vLLM {context.packages.get('vllm')} does not read {names}: unset what has no effect, or find its new name"


QUIRK = Quirk(
    id="unread-environment",
    title="Variables that the installed vLLM no longer reads have no effect, silently",
    flag=ModelFlag.ENVIRONMENT,
    match=Fact("environment.unread").is_not_empty(),
    adjustments=(Advise(_message),),
    severity=Severity.NOISE,
    references=(report("https://github.com/OpenRLHF/OpenRLHF/pull/1328"),),
    since="0.1.0",
)
