"""Speculative decoding in rollouts that start from dummy weights: the draft gets dummy weights, too, and keeps them.

What happens: speculative decoding makes the rollout slower instead of faster, because no draft token is accepted. The sampled
tokens are right. vLLM loads a draft (a draft model, EAGLE, the MTP layers of a checkpoint) with the load format of the target.
A rollout loads the target as ``dummy``, because the first refit replaces its weights; few trainers' refits send the draft's.
``draft_load_config`` of ``speculative_config`` sets another load format for the draft, but drafts of the method ``draft_model``
ignore it (``DraftModelProposer._get_model``). A draft that is trained, too, still has to be refitted by the trainer
(vllm-project/vllm#46725).

When it can go: when the draft does not inherit ``dummy`` from the target, or rollouts refit drafts.
"""

from typing import Any

from quirks_core import Affected, Default, Quirk, Severity, StaticProbe, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import dummy_weights, insists_on_dummy_weights
from quirks_plugins.kit import Lab, Outcome

_FORMAT, _SLOT = "engine.load_format", "engine.speculative_config"
_DRAFT = {_SLOT: {"model": "draft", "num_speculative_tokens": 3}}
_OWN = {"draft_load_config": {"load_format": "auto"}}
_DUMMY = {**_DRAFT, _FORMAT: "dummy"}

QUIRK = Quirk(
    id="draft-dummy-load",
    title="The draft of a rollout that starts from dummy weights gets dummy weights, and no refit replaces them",
    match=purpose("rollout") & dummy_weights & setting("engine.speculative_config").is_set(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Default("engine.load_format", "auto", reason="the draft is loaded in the way of its target, and no refit replaces it"),
        Default(
            "engine.speculative_config",
            _OWN,
            when=insists_on_dummy_weights,
        ),
    ],
    severity=Severity.SLOW,
    references=[report("vllm-project/vllm#48296"), report("verl-project/verl#6947")],
    evidence=StaticProbe(
        "vllm.config.speculative",
        r"draft_load_config: LoadConfig \| None = None\s+\"\"\"[^\"]*will use the load\s+config from the target model",
    ),
    examples=[
        yes("qwen3", _DRAFT, vllm="0.32.0", defaults={_FORMAT: "dummy"}, gives={_FORMAT: "auto"}),
        yes("qwen3", _DUMMY, vllm="0.32.0", gives={_SLOT: {**_DRAFT[_SLOT], **_OWN}}),
        yes(
            "qwen3",
            {_FORMAT: "dummy", _SLOT: {**_DRAFT[_SLOT], "draft_load_config": {"load_format": "dummy"}}},
            vllm="0.32.0",
            gives={},
        ),
        no("qwen3", {**_DRAFT, "engine.load_format": "auto"}, vllm="0.32.0"),
        no("qwen3", {"engine.load_format": "dummy"}, vllm="0.32.0"),
        no("qwen3", _DUMMY, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", _DUMMY),
    ],
    cost="the target is loaded from its checkpoint, too, before the first refit replaces its weights",
)

#: Draft tokens of each step.
_DRAFTED = 3


async def scenario(lab: Lab) -> Outcome:
    """A draft with the target's own weights is accepted, so that a step gives several tokens."""
    from worker.lab.kit.lab import NEW_TOKENS, Outcome

    model = lab.checkpoint("qwen3")
    draft = {"method": "draft_model", "model": str(model), "num_speculative_tokens": _DRAFTED}
    async with lab.worker(model, {"engine": {"speculative_config": draft}}) as worker:
        await worker.refit_async(lab.trainer(model))
        steps = await _steps(lab.engine(worker))
    most = NEW_TOKENS // 2
    return Outcome(steps <= most, f"steps for {NEW_TOKENS} greedy tokens of a draft like its target", str(steps), f"≤ {most}")


async def _steps(engine: Any) -> int:
    """Counts the outputs of one request, one of each step."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS

    params = SamplingParams(
        temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA, detokenize=False
    )
    return len([output async for output in engine.generate({"prompt_token_ids": list(PROMPTS[0])}, params, "steps")])
