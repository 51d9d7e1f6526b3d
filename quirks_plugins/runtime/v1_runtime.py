"""vLLM 0.11 and newer have only the V1 runtime, and silently ignore a recipe that selects V0.

What happens: the run uses V1, which is not what the recipe was made for. Recipes of NeMo RL select V0 with
``NRL_VLLM_USE_V1=0`` (any value except 1 does); its own asynchronous engine ignores the variable.

When it can go: when recipes no longer set the variable.

Evidence: V0's engine files are in the wheel of vLLM 0.10.2 and gone from 0.11.0's.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Refuse, Severity, environment, fix, no, report, setting, unknown, yes

_variable = environment("NRL_VLLM_USE_V1").differs_from("1")
_setting = setting("engine.runtime").one_of("v0")
_V0 = {"engine.runtime": "v0"}

QUIRK = Quirk(
    id="v1-runtime",
    title="The V0 runtime is gone since vLLM 0.11",
    kind=Kind.RULE,
    match=_variable | _setting,
    affected=Affected("vllm", introduced="0.11.0"),
    adjustments=[
        Refuse(
            "V0 was asked for, but vLLM removed it in 0.11.0",
            "set engine.runtime: v1 (or leave it open); who needs V0 must install vLLM 0.10.2 or earlier",
            when=_setting,
        ),
        Advise(
            "NRL_VLLM_USE_V1 asks for V0, which vLLM removed in 0.11.0: the run uses V1; unset the variable",
            when=_variable,
        ),
    ],
    severity=Severity.NOISE,
    references=[report("vllm-project/vllm#18571"), fix("vllm-project/vllm/pull/25033")],
    examples=[
        yes(settings=_V0, vllm="0.11.0", refuses=["engine.runtime: v1", "0.10.2 or earlier"]),
        yes(vllm="0.32.0", env={"NRL_VLLM_USE_V1": "false"}, advises="unset the variable"),
        no(settings=_V0, vllm="0.10.2"),
        no(vllm="0.32.0", env={"NRL_VLLM_USE_V1": "1"}),
        unknown(settings=_V0),
    ],
)
