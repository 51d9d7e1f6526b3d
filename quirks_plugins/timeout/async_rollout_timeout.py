"""Asynchronous rollouts: a request that never ends holds up a training step for ever.

What happens: the step waits for one sample. NeMo RL documents a variable for a time limit of each request and its default of
600 seconds (its code moved to 900 in NVIDIA-NeMo/RL#2318 without the documentation).
"""

from quirks_core import Default, Kind, Quirk, Refuse, RunContext, Severity, described, no, report, yes
from quirks_core.declaration.match import environment, purpose, setting, typed
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import parallel

_VARIABLE = "NRL_VLLM_ASYNC_TIMEOUT_SECONDS"
_DOCUMENTED_DEFAULT_S = 600.0
_ASYNC = parallel(asynchronous=True)
_usable = described(
    environment(_VARIABLE).matches(r"^\s*\+?(?=.*[1-9])\d+(\.\d+)?\s*$"),
    f"`{_VARIABLE}` is a positive number",
    f"`{_VARIABLE}` is no positive number",
)
_given = environment(_VARIABLE).is_set()


def _timeout(context: RunContext) -> float:
    return float(context.environment.get(_VARIABLE, _DOCUMENTED_DEFAULT_S))


QUIRK = Quirk(
    id="async-rollout-timeout",
    title="A rollout request without a time limit can hold up a training step for ever",
    kind=Kind.FEATURE,
    match=purpose("rollout") & setting("engine.async_engine").is_true(),
    adjustments=[
        Default("request.timeout_s", at_least=_timeout, when=_usable | ~_given),
        Refuse(
            f"{_VARIABLE} is not a positive number of seconds",
            f"export {_VARIABLE}=600, or set request.timeout_s",
            when=_given & ~_usable & ~typed("request.timeout_s"),
        ),
    ],
    severity=Severity.CRASH,
    references=report("NVIDIA-NeMo/RL/pull/2318"),
    examples=[
        yes(settings=_ASYNC, gives={"request.timeout_s": 600.0}),
        yes(settings=_ASYNC, env={_VARIABLE: "0.5"}, gives={"request.timeout_s": 0.5}),
        yes(settings=_ASYNC, env={_VARIABLE: " +60 "}, gives={"request.timeout_s": 60.0}),
        yes(settings={**_ASYNC, "request.timeout_s": 5}, gives={}),
        yes(settings={**_ASYNC, "request.timeout_s": 5}, env={_VARIABLE: "soon"}, gives={}),
        *(
            yes(settings=_ASYNC, env={_VARIABLE: text}, refuses=f"export {_VARIABLE}=600")
            for text in ("", "0", "0.0", "-5", "ten", "inf", "nan", "1e3", "600s")
        ),
        no(settings=parallel(asynchronous=False)),
        no(settings=_ASYNC, purpose="serve"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout request that takes longer than the environment allows is given up."""
    from worker.errors import GenerationTimeoutError

    measure, expected = f"requests of 200 tokens with {_VARIABLE}=0.05", "given up after 0.05 s"
    values = {"engine": {"load_format": "auto"}, "env": {_VARIABLE: "0.05"}, "sampling": {"max_new_tokens": 200}}
    async with lab.worker(lab.checkpoint("qwen3"), values) as worker:
        try:
            rows = await lab.greedy(worker)
        except GenerationTimeoutError as error:
            return Outcome(True, measure, str(error).partition(";")[0], expected)
    return Outcome(False, measure, f"not limited: ran on for {sum(len(row.tokens) for row in rows)} tokens", expected)
