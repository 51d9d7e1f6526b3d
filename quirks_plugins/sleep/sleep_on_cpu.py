"""Sleep mode on vLLM's CPU platform: the engine does not start.

What happens: the engine ends with ``ValueError: Sleep mode is not supported on current platform.``, while vLLM reads its
configuration. A configuration for colocated training that is tried on a machine without a GPU ends there, in each of its
actors.

When it can go: when vLLM's CPU platform can sleep; the paired run will show it.
"""

from quirks_core import Kind, Quirk, Refuse, Severity, StaticProbe, no, platform, report, setting, unknown, yes
from quirks_plugins.dp_ep_strategy.evidence import refused_or_started
from quirks_plugins.kit import Lab, Outcome

_ON = {"engine.enable_sleep_mode": True}

QUIRK = Quirk(
    id="sleep-on-cpu",
    title="vLLM's CPU platform cannot sleep, and an engine that is asked to does not start",
    kind=Kind.RULE,
    match=platform("cpu") & setting("engine.enable_sleep_mode").is_true(),
    adjustments=Refuse(
        "sleep mode was asked for, and vLLM's CPU platform has none",
        "set engine.enable_sleep_mode: false (or leave it open); to give memory back on a CPU, shut the engine down",
    ),
    severity=Severity.CRASH,
    crash=r"Sleep mode is not supported on current platform",
    references=report("vllm-project/vllm#16561"),
    evidence=StaticProbe("vllm.config.model", r"Sleep mode is not supported on current platform"),
    examples=[
        yes("qwen3", _ON, platform="cpu", refuses="engine.enable_sleep_mode"),
        no("qwen3", _ON, platform="cuda"),
        no("qwen3", platform="cpu"),
        unknown("qwen3", _ON),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An engine with sleep mode is refused before it starts, or starts."""
    return await refused_or_started(lab, lab.checkpoint("qwen3"), {"engine": {"enable_sleep_mode": True}}, "sleep mode")
