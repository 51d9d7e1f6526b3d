"""A float32 head on one side only makes the logprobs of engine and trainer differ more than a float32 head on neither.

What happens: the logprobs of the two sides differ if only one of them has its head in float32. The paired run shows it on a
model whose layers agree exactly: the difference is 0 with the head in float32 on both sides or on neither, and 0.01 nats on
average (up to 0.09) with it on one side. In bfloat16 the last product of a model rounds its logits to a grid, whose steps are
0.125 at the size of a real model's logits, about 20. With the head in float32 on both sides the rounding is gone. With it on
one side alone, one side rounds and the other does not: NVIDIA-NeMo/RL#3936 notes that the error then grows, because without
float32 both sides round to the same grid. In vLLM the setting is a key of the checkpoint's configuration (``head_dtype``),
which generation models obey from 0.26.0 on (vllm-project/vllm#48390; read in the sources of 0.25.1, which falls back to the
model's dtype with a warning, and of 0.26.0). In the trainer it is another switch, in another program.

What this changes: if ``engine.head_dtype`` or ``train.head_dtype`` is ``float32``, the other one must be ``float32``, too. The
quirk sets the one that the user left open, and refuses the run if the user set it to ``model``. The trainer finds its value in
the plan. If both are open, the trainer is described (``train.dtype`` or ``train.backend``) and the engine computes in bfloat16
or float16, the plan proposes float32 on both sides, which is what published recipes do. It is no default, because both
programs pay for it.

When it can go: never; it is a law, not a workaround.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from quirks_core import (
    Advise,
    Affected,
    Kind,
    ModelFlag,
    Quirk,
    Require,
    Severity,
    fix,
    no,
    purpose,
    report,
    setting,
    typed,
    unknown,
    yes,
)
from quirks_plugins.conditions import half

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from worker.lab.kit.lab import Generated, Lab, Outcome

_ENGINE, _TRAIN = "engine.head_dtype", "train.head_dtype"
_engine_in_float32 = setting(_ENGINE).one_of("float32")
_trainer_in_float32 = setting(_TRAIN).one_of("float32")
_described = typed("train.dtype") | typed("train.backend")
_both_open = _described & half & ~setting(_ENGINE).is_set() & ~setting(_TRAIN).is_set()
_NEW = {"vllm": "0.32.0"}
_BFLOAT16 = {"model_type": "qwen3", "dtype": "bfloat16"}


def _required(slot: str, other: str) -> Require:
    return Require(
        slot,
        "float32",
        reason=f"{other} is float32, and a float32 head on one side only is worse than on neither",
        remedy=f"set {slot}: float32, or leave it open; or leave {other} open, and both heads compute in the model's dtype",
        when=setting(other).one_of("float32"),
    )


QUIRK = Quirk(
    id="fp32-head-both-sides",
    title="A float32 head in the engine or the trainer alone widens the gap between their logprobs",
    flag=ModelFlag.LM_HEAD_DTYPE,
    kind=Kind.RULE,
    match=purpose("rollout") & (_engine_in_float32 | _trainer_in_float32 | _both_open),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        _required(_TRAIN, _ENGINE),
        _required(_ENGINE, _TRAIN),
        Advise(
            f"in bfloat16 both sides round their logits: set {_ENGINE}: float32 and {_TRAIN}: float32, and that part of the "
            "difference between their logprobs is gone",
            when=_both_open,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        fix("https://github.com/vllm-project/vllm/pull/48390"),
        report("https://github.com/NVIDIA-NeMo/RL/pull/3936"),
        report("https://github.com/huggingface/trl/pull/4303"),
        report("https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections"),
    ],
    examples=[
        yes(settings={_ENGINE: "float32"}, vllm="0.26.0", gives={_TRAIN: "float32"}),
        yes(settings={_TRAIN: "float32"}, packages=_NEW, gives={_ENGINE: "float32"}),
        yes(settings={_ENGINE: "float32", _TRAIN: "float32"}, packages=_NEW, gives={}),
        yes(settings={_ENGINE: "float32", _TRAIN: "model"}, packages=_NEW, refuses=["one side only", f"set {_TRAIN}: float32"]),
        yes(
            settings={_TRAIN: "float32", _ENGINE: "model"}, packages=_NEW, refuses=["one side only", f"set {_ENGINE}: float32"]
        ),
        yes(_BFLOAT16, {"train.dtype": "bfloat16"}, packages=_NEW, advises="that part of the difference"),
        no(_BFLOAT16, packages=_NEW),
        no(_BFLOAT16, {"train.dtype": "bfloat16", _ENGINE: "model"}, packages=_NEW),
        no({"model_type": "qwen3", "dtype": "float32"}, {"train.dtype": "float32", "engine.dtype": "float32"}, packages=_NEW),
        no(settings={_ENGINE: "model"}, packages=_NEW),
        no(settings={_TRAIN: "model"}, packages=_NEW),
        no(packages=_NEW),
        no(settings={_ENGINE: "float32"}, vllm="0.25.1"),
        no(settings={_ENGINE: "float32"}, packages=_NEW, purpose="serve"),
        unknown(settings={_ENGINE: "float32"}),
        unknown(settings={_ENGINE: "float32"}, vllm="0.1.dev1+g123"),
    ],
    cost="the head's product runs in float32: on GPUs at a lower rate, elsewhere with a cast of its weight at every step",
)


#: In nats.
_TOLERANCE = 2e-3


async def scenario(lab: Lab) -> Outcome:
    """With a float32 head in the engine, a bfloat16 trainer that follows the plan comes to the same logprobs."""
    from worker.lab.kit.lab import Outcome

    model = large_logits(lab)
    async with lab.worker(model, {"engine": {"load_format": "auto", "dtype": "bfloat16", "head_dtype": "float32"}}) as worker:
        got = await lab.sample(worker)
        trained = _rescored(model, got, in_float32=worker.plan.value(_TRAIN) == "float32")
    rolled_out = [value for row in got for value in row.logprobs]
    mean = sum(abs(a - b) for a, b in zip(rolled_out, trained, strict=True)) / len(trained)
    return Outcome(mean <= _TOLERANCE, "mean difference to the trainer's logprobs", f"{mean:.2g}", f"at most {_TOLERANCE:g}")


def large_logits(lab: Lab) -> Path:
    """Returns a checkpoint whose logits are as large as a real model's (up to 30), and whose layers add nothing.

    The layers of a tiny random model differ more between two implementations in bfloat16 than its head does.
    """
    from safetensors.torch import load_file, save_file

    target = lab.folder / "qwen3-large-logits"
    if not target.exists():
        draft = lab.folder / "qwen3-large-logits.draft"
        shutil.copytree(lab.checkpoint("qwen3"), draft, dirs_exist_ok=True)
        weights = load_file(draft / "model.safetensors")
        for name, weight in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        weights["model.norm.weight"].fill_(1.0)
        weights["lm_head.weight"].mul_(2.0)
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        draft.rename(target)
    return target


def _rescored(model: Path, generated: Sequence[Generated], *, in_float32: bool) -> list[float]:
    """Returns a bfloat16 trainer's logprob of every token, with its head in float32 or not."""
    import torch
    from transformers import AutoModelForCausalLM

    from worker.lab.kit.lab import PROMPTS

    trainer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    found: list[float] = []
    for prompt, row in zip(PROMPTS, generated, strict=True):
        with torch.no_grad():
            hidden = trainer.model(torch.tensor([[*prompt, *row.tokens]]), use_cache=False).last_hidden_state
            hidden, weight = hidden[0, len(prompt) - 1 : -1], trainer.lm_head.weight
            logits = hidden.float() @ weight.float().T if in_float32 else (hidden @ weight.T).float()
        chosen = torch.tensor(row.tokens)[:, None]
        found += logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()
    return found
