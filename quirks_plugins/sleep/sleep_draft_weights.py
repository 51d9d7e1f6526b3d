"""A draft loses its weights in a sleep of level 2.

What happens: after the engine was woken up, no draft token is accepted, and speculative decoding makes rollouts slower instead
of faster. Sampled tokens are right, and nothing is reported. A sleep of level 2 discards the weights of target and draft; a
refit or ``reload_weights`` brings those of the target only (vllm-project/vllm#52479). vLLM 0.31 has the argument that keeps a
draft's weights, and fails to sleep with ``draft.*``.

When it can go: when vLLM restores drafts by itself (vllm-project/vllm#52487, not merged). It shows only on a GPU.
"""

from quirks_core import Advise, Affected, Default, Quirk, Severity, StaticProbe, no, package, report, setting, unknown, yes

_SLOT = "engine.sleep_preserve_parameter_names"
_SPECULATIVE = "engine.speculative_config"
_ASLEEP = {"engine.enable_sleep_mode": True, _SPECULATIVE: {"method": "mtp", "num_speculative_tokens": 2}}

QUIRK = Quirk(
    id="sleep-draft-weights",
    title="After a sleep of level 2 a draft has no weights, and no draft token is accepted",
    match=(
        setting("engine.enable_sleep_mode").is_true()
        & setting(_SPECULATIVE).is_set()
        & ~setting(f"{_SPECULATIVE}.method").one_of("ngram", "ngram_gpu", "suffix")
    ),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Default(
            _SLOT,
            includes=["draft.*"],
            reason="a sleep of level 2 discards the draft's weights, and no refit restores them",
            when=package("vllm", introduced="0.32.0"),
        ),
        Advise(
            "a sleep of level 2 discards the draft's weights, and this vLLM does not restore them: sleep at level 1",
            when=package("vllm", fixed="0.32.0"),
        ),
    ],
    severity=Severity.SLOW,
    references=[
        report("vllm-project/vllm#52479"),
        report("vllm-project/vllm/pull/52487"),
        report("vllm-project/vllm/pull/57891"),
    ],
    evidence=StaticProbe("vllm.v1.worker.gpu_worker", r"# Save the buffers before level 2 sleep\s+if level == 2:"),
    examples=[
        yes("qwen3", _ASLEEP, vllm="0.32.0", gives={_SLOT: ["draft.*"]}),
        yes("qwen3", _ASLEEP, vllm="0.31.0", gives={}, advises="sleep at level 1"),
        no("qwen3", {**_ASLEEP, _SPECULATIVE: {"method": "ngram", "num_speculative_tokens": 2}}, vllm="0.32.0"),
        no("qwen3", {_SPECULATIVE: _ASLEEP[_SPECULATIVE]}, vllm="0.32.0"),
        no("qwen3", {"engine.enable_sleep_mode": True}, vllm="0.32.0"),
        unknown("qwen3", _ASLEEP),
    ],
    cost="CPU memory for the draft's weights during a sleep of level 2",
)
