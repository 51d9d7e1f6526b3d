"""vLLM 0.11 and newer have only the V1 runtime, and silently ignore a recipe that selects V0.

What happens: from vLLM 0.11.0 on the request for V0 is silently ignored, because that release removed V0 (its engine files are
in the 0.10.2 wheel and gone from 0.11.0's). Recipes of NeMo RL select V0 with ``NRL_VLLM_USE_V1=0`` (any value except 1
does). Before vLLM 0.11 that means ``VLLM_USE_V1=0``, and only the synchronous engine can run it.

When it can go: when 0.11 is the oldest vLLM that is supported, and recipes no longer set the variable.

Evidence: read from the wheels of 0.10.2 and 0.11.0; the synchronous V0 engine is not run in our tests. NeMo RL itself ignores
the variable for its asynchronous engine.
"""

from quirks_core import Advise, Kind, Quirk, Refuse, Require, Severity, environment, fix, no, package, report, setting, yes

_v0_exists = package("vllm", fixed="0.11.0")
_asynchronous = setting("engine.async_engine").is_true()
_variable = environment("NRL_VLLM_USE_V1").differs_from("1")
_setting = setting("engine.runtime").one_of("v0")
_V0 = {"engine.runtime": "v0"}
_SYNC, _ASYNC = {"engine.async_engine": False}, {"engine.async_engine": True}

QUIRK = Quirk(
    id="v1-runtime",
    title="The V0 runtime exists only before vLLM 0.11, and only for the synchronous engine",
    kind=Kind.RULE,
    match=_variable | _setting,
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
            "set engine.runtime: v1 (or leave it open); who needs V0 must install vLLM 0.10.2 or earlier",
            when=~_v0_exists & _setting,
        ),
        Advise(
            "NRL_VLLM_USE_V1 asks for V0, which vLLM removed in 0.11.0: the run uses V1; unset the variable",
            when=~_v0_exists & _variable,
        ),
    ],
    severity=Severity.NOISE,
    references=[report("vllm-project/vllm#18571"), fix("vllm-project/vllm/pull/25033")],
    examples=[
        yes(settings={**_V0, **_SYNC}, vllm="0.10.2", gives={"env.VLLM_USE_V1": "0"}),
        yes(settings=_SYNC, vllm="0.11.0rc1", env={"NRL_VLLM_USE_V1": "0"}, gives={"env.VLLM_USE_V1": "0"}),
        yes(
            settings={**_V0, **_SYNC},
            vllm="0.10.2",
            env={"VLLM_USE_V1": "1"},
            refuses=["env.VLLM_USE_V1 must be '0', but '1' was set"],
        ),
        yes(settings={**_V0, **_ASYNC}, vllm="0.10.2", refuses="engine.async_engine: false"),
        yes(settings=_ASYNC, vllm="0.10.2", env={"NRL_VLLM_USE_V1": "0"}, refuses="engine.async_engine: false"),
        yes(settings={**_V0, **_SYNC}, vllm="0.11.0", refuses=["engine.runtime: v1", "0.10.2 or earlier"]),
        yes(settings=_ASYNC, vllm="0.32.0", env={"NRL_VLLM_USE_V1": "0"}, advises="unset the variable"),
        yes(vllm="0.32.0", env={"NRL_VLLM_USE_V1": "false"}, advises="unset the variable"),
        yes(settings={**_V0, **_SYNC}, vllm="0.1.dev1+g123", gives={}),
        no(vllm="0.10.2"),
        no(vllm="0.32.0", env={"NRL_VLLM_USE_V1": "1"}),
    ],
)
