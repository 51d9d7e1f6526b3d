"""Asynchronous rollouts: a request that never ends must not hold up a training step for ever.

What this changes: a rollout request is given up after ``NRL_VLLM_ASYNC_TIMEOUT_SECONDS`` seconds, 600 if it is not set, as
NeMo RL documents it (its code moved to 900 in NVIDIA-NeMo/RL#2318 without the documentation).
"""

from __future__ import annotations

from quirks_core import Default, ModelFlag, Quirk, Refuse, RunContext, Severity, environment, purpose, report, setting, typed

_VARIABLE = "NRL_VLLM_ASYNC_TIMEOUT_SECONDS"
_DOCUMENTED_DEFAULT_S = 600.0
_usable = environment(_VARIABLE).matches(r"^\s*\+?(?=.*[1-9])\d+(\.\d+)?\s*$")
_given = environment(_VARIABLE).is_set()


def _timeout(context: RunContext) -> float:
    return float(context.environment.get(_VARIABLE, _DOCUMENTED_DEFAULT_S))


QUIRK = Quirk(
    id="async-rollout-timeout",
    title="A rollout request without a time limit can hold up a training step for ever",
    flag=ModelFlag.TIMEOUT,
    match=purpose("rollout") & setting("engine.async_engine").is_true(),
    adjustments=(
        Default("request.timeout_s", _timeout, when=_usable | ~_given),
        Refuse(
            f"{_VARIABLE} is not a positive number of seconds",
            f"export {_VARIABLE}=600, or set request.timeout_s",
            when=_given & ~_usable & ~typed("request.timeout_s"),
        ),
    ),
    severity=Severity.CRASH,
    references=(report("https://github.com/NVIDIA-NeMo/RL/pull/2318"),),
    since="0.1.0",
)
