"""Environment variables that the user set and the installed vLLM does not read have no effect.

What happens: a recipe that sets a variable's old name (``VLLM_USE_V1``, ``VLLM_ATTENTION_BACKEND``,
``VLLM_USE_FLASHINFER_MOE_FP8`` …) runs without the setting and without an error; vLLM only logs one line.
"""

from quirks_core import Advise, Fact, Kind, Quirk, RunContext, Severity, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome


def _message(context: RunContext) -> str:
    names = ", ".join(context.unread_environment or ())
    return f"vLLM {context.packages.get('vllm')} does not read {names}: unset what has no effect, or find its new name"


QUIRK = Quirk(
    id="unread-environment",
    title="Variables that the installed vLLM no longer reads have no effect, silently",
    kind=Kind.RULE,
    match=Fact("environment.unread").is_not_empty(),
    adjustments=Advise(_message),
    severity=Severity.NOISE,
    references=[report("OpenRLHF/OpenRLHF/pull/1328"), report("ray-project/ray/pull/58828")],
    examples=[
        yes(vllm="0.32.0", env={"VLLM_USE_V1": "1"}, extra={"environment.unread": ["VLLM_USE_V1"]}, advises="does not read"),
        no(vllm="0.32.0", env={"NCCL_DEBUG": "INFO"}),
        unknown(env={"VLLM_USE_V1": "1"}),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The plan warns of a variable that the installed vLLM does not read; vLLM itself only logs a line."""
    name = "VLLM_USE_V1"
    plan = lab.plan(lab.checkpoint("qwen3"), {"env": {name: "1"}})
    import vllm.envs

    if name in vllm.envs.environment_variables:
        return Outcome(True, f"{name} is set", "vLLM reads it", "read, or the plan says so")
    is_named = any(name in note.text for note in plan.warnings)
    got = "vLLM does not read it, and the plan says so" if is_named else "vLLM does not read it, and the plan is silent"
    return Outcome(is_named, f"{name} is set", got, "read, or the plan says so")
