"""Arguments that the installed vLLM still takes, and that have no effect any more.

What happens: a recipe sets ``disable_cascade_attn`` (verl's FAQ recommends it against mismatch) or ``mamba_cache_mode`` (NeMo
RL's recipes for Nemotron set it), and the run is not that of the recipe; vLLM only logs a line. From vLLM 0.32.0 on there is
no cascade attention to switch off. From 0.33.0 on the prefix cache of Mamba layers follows ``enable_prefix_caching``: ``none``
no longer switches it off.

What this changes: nothing; the plan warns and names the settings to use instead.

When it can go: when vLLM no longer takes them, as it announces; the run is then refused as with any unknown argument.
``unread-environment`` does the same for variables.

Evidence: a static probe; what vLLM does with the arguments is nothing, which no run shows.
"""

from __future__ import annotations

from quirks_core import (
    Advise,
    Affected,
    Kind,
    ModelFlag,
    Quirk,
    Severity,
    StaticProbe,
    no,
    package,
    report,
    typed,
    unknown,
    yes,
)

_CASCADE, _MAMBA = "engine.disable_cascade_attn", "engine.mamba_cache_mode"
_cascade = typed(_CASCADE)
_mamba = typed(_MAMBA) & package("vllm", introduced="0.33.0")

QUIRK = Quirk(
    id="unread-arguments",
    title="Arguments that vLLM takes and no longer reads have no effect",
    flag=ModelFlag.ENVIRONMENT,
    kind=Kind.RULE,
    match=_cascade | _mamba,
    affected=Affected("vllm", introduced="0.32.0"),
    adjustments=[
        Advise(f"{_CASCADE} has no effect: this vLLM has no cascade attention. Leave it out", when=_cascade),
        Advise(f"{_MAMBA} has no effect: set engine.enable_prefix_caching, which Mamba layers follow", when=_mamba),
    ],
    severity=Severity.NOISE,
    references=[
        report("https://github.com/vllm-project/vllm/pull/36318"),
        report("https://github.com/vllm-project/vllm/pull/55041"),
    ],
    evidence=StaticProbe(
        "vllm.engine.arg_utils",
        r"_DISABLE_CASCADE_ATTN_DEPRECATION_MESSAGE = \(\s+\"[^\"]+has no effect",
        found_means_affected=True,
    ),
    examples=[
        yes("qwen3", {_CASCADE: True}, vllm="0.32.0", advises="no cascade attention"),
        yes("nemotron_h", {_MAMBA: "none"}, vllm="0.33.0", advises="engine.enable_prefix_caching"),
        yes("nemotron_h", {_MAMBA: "align"}, vllm="0.33.0", purpose="serve", advises=_MAMBA),
        no("qwen3", {_CASCADE: True}, vllm="0.31.0"),
        no("nemotron_h", {_MAMBA: "align"}, vllm="0.32.0"),
        no("qwen3", vllm="0.33.0"),
        unknown("qwen3", {_CASCADE: True}),
    ],
)
