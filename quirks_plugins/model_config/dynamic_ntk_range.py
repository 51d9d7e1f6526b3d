"""Dynamic NTK (InternLM, InternVL): vLLM accepts sequences longer than the rotations that it has computed.

What happens: a request longer than ``max_position_embeddings`` gets logprobs that are wrong by several nats, then NaN, where
the kernel does not check (seen on the CPU platform). In compiled code it ends the engine with a device-side assert. For
``rope_type: dynamic`` with a ``factor``, vLLM accepts ``max_position_embeddings`` times the factor as the longest sequence
(``vllm.config.model:_get_and_verify_max_len``). The table of rotations, however, has ``max_position_embeddings`` rows
(``dynamic_ntk_scaling_rope.py``), and the request reads past it. In addition, vLLM does not rescale the base for long
sequences; transformers does, and that is the definition of dynamic NTK.

When it can go: when the table has as many rows as a sequence may have tokens (vllm-project/vllm#55910, open); for rollouts,
when vLLM also rescales as transformers does. The table is too short since vllm-project/vllm#41277.
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, Match, setting
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited, refused_or_close
from quirks_plugins.model_config.rope import NAMES, OVERRIDES, num_positions, of_kind, text_only

_POSITIONS = "model.config.max_position_embeddings"


def _has(key: str) -> Match:
    new, old = (Fact(f"model.config.{name}.{key}").is_set() for name in NAMES)
    typed_new, typed_old = (setting(f"{OVERRIDES}.{name}.{key}").is_set() for name in NAMES)
    has: Match = described(
        new | old | typed_new | typed_old, f"the rope mapping has a `{key}`", f"the rope mapping has no `{key}`"
    )
    return has


_LENGTH = setting("engine.max_model_len")
_INTERN = {"model_type": "internlm2", "max_position_embeddings": 32768, "rope_scaling": {"type": "dynamic", "factor": 2.0}}

QUIRK = Quirk(
    id="dynamic-ntk-range",
    title="With dynamic NTK scaling vLLM accepts sequences longer than its table of rotations",
    match=text_only
    & of_kind("dynamic")
    & _has("factor")
    & ~_has("max_trained_positions")
    & Fact(_POSITIONS).is_set()
    & (~_LENGTH.is_set() | _LENGTH.above(Fact(_POSITIONS))),
    affected=Affected("vllm", introduced="0.22.0"),
    adjustments=Require(
        "engine.max_model_len",
        at_most=num_positions,
        reason="vLLM computes no rotations beyond max_position_embeddings, and does not rescale as transformers does",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/55910"), report("vllm-project/vllm#3488")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.rotary_embedding.dynamic_ntk_scaling_rope",
        r"t = torch\.arange\(self\.max_position_embeddings, dtype=torch\.float\)",
    ),
    examples=[
        yes(_INTERN, {"engine.max_model_len": 65536}, vllm="0.32.0", refuses="engine.max_model_len"),
        yes(_INTERN, vllm="0.25.1", gives={"engine.max_model_len": 32768}),
        no(_INTERN, vllm="0.21.0"),
        no(_INTERN, {"engine.max_model_len": 32768}, vllm="0.32.0"),
        no({**_INTERN, "rope_scaling": {"type": "dynamic", "alpha": 1000.0}}, vllm="0.32.0"),
        no({**_INTERN, "rope_scaling": {"type": "linear", "factor": 2.0}}, vllm="0.32.0"),
        unknown(_INTERN),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """Every token that the engine generates has the trainer's logprob, however many are requested."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    # The longest prompt fits, what follows it does not.
    model = edited(lab, "llama", "dynamic", {"max_position_embeddings": 48, "rope_parameters": rope})
    return await refused_or_close(lab, model, {"max_model_len": 128})
