"""``TORCHDYNAMO_DISABLE=1`` without eager execution: the engine does not start.

What happens: every engine process dies with "aot_compile is not supported by the current configuration", after the weights
were loaded. vLLM compiles the model ahead of time (``aot_compile``, with torch 2.10 or newer). If the variable turns torch's
Dynamo off, ``torch.compile`` returns the original function, which has no ``aot_compile``. vLLM checks the variable
``TORCH_COMPILE_DISABLE``, which turns its compilation off, but not this one (pytorch/pytorch#174607).

An engine whose ``compilation_config`` has the mode 0 compiles nothing: it starts, and keeps its CUDA graphs.

When it can go: when vLLM treats both variables alike, or torch's ``aot_compile`` returns the plain function.
"""

from quirks_core import Affected, Kind, Quirk, Require, Severity, environment, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_EAGER = "engine.enforce_eager"
_OFF = {"TORCHDYNAMO_DISABLE": "1"}

QUIRK = Quirk(
    id="dynamo-disabled-needs-eager",
    title="An engine that compiles does not start where TORCHDYNAMO_DISABLE=1",
    kind=Kind.RULE,
    match=(
        environment("TORCHDYNAMO_DISABLE").one_of("1")
        & ~environment("VLLM_USE_AOT_COMPILE").one_of("0")
        & ~setting("engine.compilation_config.mode").one_of(0, "none", "NONE")
    ),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Require(
        _EAGER,
        True,
        reason="TORCHDYNAMO_DISABLE=1 turns off what vLLM compiles the model with",
        remedy="unset TORCHDYNAMO_DISABLE, or set engine.enforce_eager: true (or leave it open)",
    ),
    severity=Severity.CRASH,
    crash="aot_compile is not supported by the current configuration",
    references=report("pytorch/pytorch#174607"),
    examples=[
        yes("qwen3", {"engine.compilation_config": {"mode": 3}}, vllm="0.32.0", env=_OFF, gives={_EAGER: True}),
        yes("qwen3", {_EAGER: False}, vllm="0.32.0", env=_OFF, refuses=[_EAGER, "unset TORCHDYNAMO_DISABLE"]),
        yes("qwen3", vllm="0.32.0", env=_OFF, purpose="serve"),
        no("qwen3", vllm="0.32.0", env={"TORCHDYNAMO_DISABLE": "0"}),
        no("qwen3", vllm="0.32.0", env={**_OFF, "VLLM_USE_AOT_COMPILE": "0"}),
        no("qwen3", {"engine.compilation_config": {"mode": 0}}, vllm="0.32.0", env=_OFF),
        no("qwen3", {"engine.compilation_config": {"mode": "none"}}, vllm="0.32.0", env=_OFF),
        unknown("qwen3", env=_OFF),
    ],
    cost="no compilation and no CUDA graphs; the variable asks for the former",
)


async def scenario(lab: Lab) -> Outcome:
    """With the variable set, an engine whose execution was left open starts, and generates the model's tokens."""
    model = lab.checkpoint("qwen3")
    values = {"engine": {"enforce_eager": None, "load_format": "auto"}, "env": _OFF}
    async with lab.worker(model, values) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
