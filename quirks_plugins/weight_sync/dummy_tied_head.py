"""A dummy start ties a head to the embeddings although the two differ in the checkpoint, and refits lose the head.

What happens: after every refit the policy's logits are those of another head than the trainer's, and rollouts are garbage. This
concerns checkpoints whose ``config.json`` declares ``tie_word_embeddings``, but whose ``lm_head.weight`` differs from the
embeddings, as some tools for fine-tuning write. transformers compares the two tensors and does not tie them, and so does vLLM
since 0.29.0 (``maybe_untie_word_embeddings``, vllm-project/vllm#51665), but not with dummy weights, for which it reads no
checkpoint. A refit then skips ``lm_head.weight``, and reports nothing. A head that only repeats the embeddings stays tied,
because trainers send it once.

When it can go: when vLLM compares the two tensors with every load format. Before 0.29.0 vLLM leaves out such a head with any
load format; the quirk helps dummy starts alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, purpose, report, unknown, yes
from quirks_plugins.conditions import dummy_weights, untied
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited
from quirks_plugins.weight_sync.dummy_start_patches import NoFilesError, files_of

if TYPE_CHECKING:
    import torch

_TIES = "tie_word_embeddings"
_DUMMY = {"engine.load_format": "dummy"}

QUIRK = Quirk(
    id="dummy-tied-head",
    title="A dummy start ties a head that differs from the embeddings in the checkpoint, and refits leave it out",
    match=purpose("rollout") & dummy_weights & ~untied,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.utils:initialize_model",
        wrapper="quirks_plugins.weight_sync.dummy_tied_head:wrap_initialize_model",
        expects=("700764e9b6b8", "07eafecb5d69"),
        reason="the head of the checkpoint decides whether it is tied, and vLLM does not look at it for a dummy start",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/51665"),
    evidence=StaticProbe(
        "vllm.config.vllm",
        r"(?m)^ {8}self\.model_config\.maybe_untie_word_embeddings",  # with every load format
        found_means_affected=False,
    ),
    examples=[
        no({"model_type": "llama", _TIES: False}, _DUMMY, vllm="0.32.0"),
        no({"model_type": "llama", _TIES: True}, {"engine.load_format": "auto"}, vllm="0.32.0"),
        yes({"model_type": "llama", _TIES: True}, _DUMMY, vllm="0.26.0"),
        no({"model_type": "llama", _TIES: True}, _DUMMY, vllm="0.32.0", purpose="serve"),
        unknown({"model_type": "llama", _TIES: True}, _DUMMY),
    ],
    cost="at start, reads as much of head and embeddings as it takes to see whether they differ",
)


_LOG = logging.getLogger("model_quirks")

_HEAD = "lm_head.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
#: Rows that are compared at a time; two different matrices mostly differ in the first.
_ROWS = 4096


def wrap_initialize_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make a model that starts from dummy weights have a head of its own where its checkpoint has one."""

    @wraps(original)
    def initialize_model(vllm_config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        model_config = kwargs.get("model_config") or vllm_config.model_config
        configs = (model_config.hf_config, model_config.hf_config.get_text_config())
        ties = any(getattr(config, "tie_word_embeddings", False) for config in configs)
        if vllm_config.load_config.load_format == "dummy" and ties and _is_untied(model_config):
            for config in configs:
                config.tie_word_embeddings = False
        return original(vllm_config, *args, **kwargs)

    return initialize_model


def _is_untied(model_config: Any) -> bool:
    try:
        return differ(model_config.model, model_config.revision)
    except NoFilesError as error:
        _LOG.warning(
            "%s: whether its head differs from its embeddings is unknown, so they are tied as config.json says; a refit leaves "
            "out a head that differs",
            error,
        )
        return False


def differ(model: str, revision: str | None = None) -> bool:
    """Returns whether a checkpoint's head ``[vocabulary, hidden]`` is another matrix than its only embeddings.

    Raises:
        NoFilesError: Its files are not here.
    """
    from safetensors import safe_open

    files = files_of(model, revision)
    heads = [name for name in files if name.endswith(_HEAD)]
    embeddings = [name for name in files if name.endswith(_EMBEDDINGS)]
    if len(heads) != 1 or len(embeddings) != 1:
        return False
    with safe_open(files[heads[0]], "pt") as one, safe_open(files[embeddings[0]], "pt") as other:
        return _are_different(one.get_slice(heads[0]), other.get_slice(embeddings[0]))


def _are_different(one: Any, other: Any) -> bool:
    import torch

    if one.get_shape() != other.get_shape():
        return True
    starts = range(0, one.get_shape()[0], _ROWS)
    return not all(torch.equal(one[start : start + _ROWS], other[start : start + _ROWS]) for start in starts)


async def scenario(lab: Lab) -> Outcome:
    """An engine that started from dummy weights generates what the trainer does, which has a head of its own."""
    model = edited(lab, "llama", "says-tied", {_TIES: True})
    trainer = lab.trainer(model)
    async with lab.worker(model, {"engine": {"load_format": "dummy"}}) as worker:
        await worker.refit_async(trainer)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))
