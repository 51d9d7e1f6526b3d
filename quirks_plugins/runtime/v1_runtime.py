"""vLLM 0.11 and newer have only the V1 runtime, and silently ignore a recipe that asks for V0.

What happens: from vLLM 0.11.0 on the request for V0 is silently ignored, because that release removed V0 (its engine files are
in the 0.10.2 wheel and gone from 0.11.0's). Recipes ask for V0 with ``NRL_VLLM_USE_V1=0``. Before vLLM 0.11 that means
``VLLM_USE_V1=0``, and only the synchronous engine can run it.

What this changes: before 0.11 the quirk sets ``VLLM_USE_V1=0`` for the synchronous engine, and refuses the asynchronous one.
From 0.11 on it refuses every run that asks for V0.

When it can go: when 0.11 is the oldest vLLM that is supported, and recipes no longer set the variable.

Evidence: read from the wheels of 0.10.2 and 0.11.0; the synchronous V0 engine is not run in our tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Require, Severity, environment, fix, no, package, report, setting, yes

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

_v0_exists = package("vllm", fixed="0.11.0")
_asynchronous = setting("engine.async_engine").is_true()
_asks_for_v0 = environment("NRL_VLLM_USE_V1").one_of("0") | setting("engine.runtime").one_of("v0")
_SYNC, _ASYNC = {"engine.async_engine": False}, {"engine.async_engine": True}

QUIRK = Quirk(
    id="v1-runtime",
    title="The V0 runtime exists only before vLLM 0.11, and only for the synchronous engine",
    flag=ModelFlag.RUNTIME,
    kind=Kind.RULE,
    match=_asks_for_v0,
    adjustments=[
        Require(
            "env.VLLM_USE_V1",
            "0",
            reason="vLLM before 0.11 reads the wish for V0 from VLLM_USE_V1",
            when=_v0_exists & ~_asynchronous,
        ),
        Refuse(
            "the asynchronous engine needs V1, but V0 was asked for",
            "set engine.async_engine: false, or drop the wish for V0 (unset NRL_VLLM_USE_V1, engine.runtime: v1)",
            when=_v0_exists & _asynchronous,
        ),
        Refuse(
            "V0 was asked for, but vLLM removed it in 0.11.0",
            "unset NRL_VLLM_USE_V1 and set engine.runtime: v1; who needs V0 must install vLLM 0.10.2 or earlier",
            when=~_v0_exists,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/issues/18571"),
        fix("https://github.com/vllm-project/vllm/pull/25033"),
    ],
    examples=[
        yes(settings={"engine.runtime": "v0", **_SYNC}, vllm="0.10.2", gives={"env.VLLM_USE_V1": "0"}),
        yes(settings=_SYNC, vllm="0.11.0rc1", env={"NRL_VLLM_USE_V1": "0"}, gives={"env.VLLM_USE_V1": "0"}),
        yes(
            settings={"engine.runtime": "v0", **_SYNC},
            vllm="0.10.2",
            env={"VLLM_USE_V1": "1"},
            refuses=["env.VLLM_USE_V1 must be '0', but '1' was set"],
        ),
        yes(settings={"engine.runtime": "v0", **_ASYNC}, vllm="0.10.2", refuses="engine.async_engine: false"),
        yes(settings=_ASYNC, vllm="0.10.2", env={"NRL_VLLM_USE_V1": "0"}, refuses="engine.async_engine: false"),
        yes(settings={"engine.runtime": "v0", **_SYNC}, vllm="0.11.0", refuses=["unset NRL_VLLM_USE_V1", "0.10.2 or earlier"]),
        yes(settings=_ASYNC, vllm="0.32.0", env={"NRL_VLLM_USE_V1": "0"}, refuses="removed it in 0.11.0"),
        yes(settings={"engine.runtime": "v0", **_SYNC}, vllm="0.1.dev1+g123", gives={}),
        no(vllm="0.10.2"),
        no(vllm="0.32.0", env={"NRL_VLLM_USE_V1": "1"}),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """Whoever asks for V0 gets V0, or an error; never V1 without a word."""
    from quirks_core.plan.records import RefusedError
    from worker.lab.kit.lab import Outcome

    expected = "V0, or an error"
    try:
        async with lab.worker(lab.checkpoint("qwen3"), {"env": {"NRL_VLLM_USE_V1": "0"}}) as worker:
            engine = type(lab.engine(worker))
    except RefusedError as error:
        return Outcome(True, "NRL_VLLM_USE_V1=0 is set", f"refused: {error.refusals[0].reason}", expected)
    is_v0 = not engine.__module__.startswith("vllm.v1.")
    return Outcome(is_v0, "NRL_VLLM_USE_V1=0 is set", f"an engine of {engine.__module__}", expected)
