"""A float32 head in the engine or the trainer alone leaves the other side's rounding in the logprobs.

What happens: in bfloat16 the last product of a model rounds its logits to a grid, whose steps are 0.125 at the size of a real
model's logits. On a trained SmolLM2-135M in bfloat16 on a CPU (vLLM 0.32.0, ``quirks parity explain``) the logprobs of vLLM and
a trainer under autocast differ by 0.038 nats on average with a float32 head on neither side, by 0.033 with one in the engine,
by 0.035 with one in the trainer, and by 0.027 with both. Where the layers of both sides agree exactly, a float32 head on one
side makes the difference larger: from 0 to 0.01 nats on a model made for it (tests/engine/test_parity.py). In vLLM
``head_dtype`` is obeyed from 0.26.0 on. It is no requirement, because one side alone did no harm to a trained model, and no
default, because it costs speed (in that engine a third).

When it can go: never; two programs that round differently differ.

Evidence: the measurements above. Advice changes nothing, so that no paired run can show it.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, described, fix, no, report, unknown, yes
from quirks_core.declaration.match import purpose, setting, typed
from quirks_plugins.conditions import ENGINE_COMPUTES, TRAINER_COMPUTES

_ENGINE, _TRAIN = "engine.head_dtype", "train.head_dtype"
_engine_in_float32 = setting(_ENGINE).one_of("float32")
# As typed: in an engine that a trainer starts by itself, its head may not be described.
_trainer_in_float32 = typed(_TRAIN) & setting(_TRAIN).one_of("float32")
_engine_alone = described(
    _engine_in_float32 & ~_trainer_in_float32 & ~(typed("train.dtype") & TRAINER_COMPUTES.one_of("float32")),
    "the engine's head alone is float32, and the trainer rounds",
    "the engine's head is not the only one in float32",
)
_trainer_alone = described(
    _trainer_in_float32 & ~_engine_in_float32 & ENGINE_COMPUTES.one_of("bfloat16", "float16"),
    "the trainer's head alone is float32, and the engine rounds",
    "the trainer's head is not the only one in float32",
)
_NEW = {"vllm": "0.32.0"}
_BFLOAT16 = {"model_type": "qwen3", "dtype": "bfloat16"}
_AUTOCAST = {"train.dtype": "float32", "train.autocast": "bfloat16"}


def _too(slot: str, other: str) -> str:
    return f"{other} is float32, and the other side still rounds its logits: set {slot}: float32, too"


QUIRK = Quirk(
    id="fp32-head-both-sides",
    title="A float32 head in the engine or the trainer alone leaves the other side's rounding in the logprobs",
    kind=Kind.RULE,
    match=purpose("rollout") & (_engine_alone | _trainer_alone),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Advise(_too(_TRAIN, _ENGINE), when=_engine_alone),
        Advise(_too(_ENGINE, _TRAIN), when=_trainer_alone),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        fix("vllm-project/vllm/pull/48390"),
        report("NVIDIA-NeMo/RL/pull/3936"),
        report("huggingface/trl/pull/4303"),
        report("https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections"),
    ],
    examples=[
        yes(settings={_ENGINE: "float32", _TRAIN: "model"}, packages=_NEW, advises=f"set {_TRAIN}: float32, too"),
        yes(settings={_ENGINE: "float32", **_AUTOCAST}, packages=_NEW, advises=f"set {_TRAIN}: float32, too"),
        yes(_BFLOAT16, {_TRAIN: "float32", _ENGINE: "model"}, packages=_NEW, advises=f"set {_ENGINE}: float32, too"),
        no(settings={_ENGINE: "float32", _TRAIN: "float32"}, packages=_NEW),
        no(settings={_ENGINE: "float32", "train.dtype": "float32"}, packages=_NEW),
        no(_BFLOAT16, {_TRAIN: "float32", "engine.dtype": "float32"}, packages=_NEW),
        no(packages=_NEW),
        no(settings={_ENGINE: "float32"}, packages=_NEW, purpose="serve"),
        unknown(settings={_ENGINE: "float32"}, vllm="0.1.dev1+g123"),
    ],
    cost="the head's product runs in float32: on GPUs at a lower rate, elsewhere with a cast of its weight at every step",
)
