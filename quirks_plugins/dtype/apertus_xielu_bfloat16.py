"""Apertus: xIELU computes with bfloat16 constants, whatever ``engine.dtype`` is.

What happens: with a float32 engine the logprobs of a tiny model differ from transformers' by 0.01 nats. With a float16 engine
the model fails with "expected m1 and m2 to have the same dtype". vLLM creates the activation of Apertus as ``XIELU()``, and the
default of its dtype is bfloat16. Its four parameters and constants (``alpha_p``, ``alpha_n``, ``beta``, ``eps``) are therefore
rounded to 8 bits, and their product with float16 activations is float32, which the next layer does not accept.

When it can go: when vLLM's Apertus gives its activation the model's dtype, as transformers does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, fix, model_type, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch

QUIRK = Quirk(
    id="apertus-xielu-bfloat16",
    title="Apertus' activation xIELU has bfloat16 constants, also in a float32 or float16 engine",
    match=model_type("apertus") & ~setting("engine.dtype").one_of("bfloat16"),
    affected=Affected("vllm", introduced="0.10.2"),
    adjustments=Patch(
        "vllm.model_executor.layers.activation:XIELU.__init__",
        wrapper="quirks_plugins.dtype.apertus_xielu_bfloat16:wrap_init",
        expects=("2265a734707b",),
        reason="vLLM makes xIELU in bfloat16, and no argument of the engine reaches it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#29349"),
        report("vllm-project/vllm/pull/30635"),
        fix("huggingface/transformers/pull/42864"),
    ],
    evidence=StaticProbe("vllm.model_executor.models.apertus", r"self\.act_fn = XIELU\(\)"),
    examples=[
        yes("apertus", {"engine.dtype": "float16"}, vllm="0.32.0", patches="XIELU.__init__"),
        no("apertus", {"engine.dtype": "float32"}, vllm="0.10.1.1"),
        no("apertus", {"engine.dtype": "bfloat16"}, vllm="0.32.0"),
        unknown("apertus", {"engine.dtype": "float32"}),
    ],
)


def wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    """Make xIELU's parameters and constants in torch's default dtype, which is the model's while vLLM makes the model."""

    @wraps(original)
    def init(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        import torch

        if len(args) <= _PLACE_OF_DTYPE:
            kwargs.setdefault("dtype", torch.get_default_dtype())
        original(self, *args, **kwargs)

    return init


#: The position of dtype among the arguments after ``self``: alpha_p_init, alpha_n_init, beta, eps, dtype.
_PLACE_OF_DTYPE = 4


async def scenario(lab: Lab) -> Outcome:
    """A float32 engine has the logprobs of transformers in float32."""
    model = lab.checkpoint("apertus")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        got = await lab.sample(worker)
    return lab.close_logprobs(got, lab.rescored(lab.trainer(model), got))
