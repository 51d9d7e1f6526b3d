"""Arguments that the installed vLLM still takes, and that have no effect any more.

What happens: a recipe sets ``disable_cascade_attn`` (verl's FAQ recommends it against mismatch) or ``mamba_cache_mode`` (NeMo
RL's recipes for Nemotron set it), and the run is not that of the recipe; vLLM only logs a line. From vLLM 0.32.0 on there is no
cascade attention to switch off. The prefix cache of Mamba layers follows ``enable_prefix_caching``, which is on by default for
models with such layers from 0.28.0 on: ``none`` no longer switches it off.

When it can go: when vLLM no longer takes them, as it announces; the run is then refused as with any unknown argument.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, StaticProbe, no, package, report, setting, typed, unknown, yes

_CASCADE, _MAMBA = "engine.disable_cascade_attn", "engine.mamba_cache_mode"
_cascade = typed(_CASCADE) & package("vllm", introduced="0.32.0")
_off = setting(_MAMBA).one_of("none") & ~setting("engine.enable_prefix_caching").one_of(False)
_mamba = typed(_MAMBA) & (_off | package("vllm", introduced="0.33.0"))

QUIRK = Quirk(
    id="unread-arguments",
    title="Arguments that vLLM takes and no longer reads have no effect",
    kind=Kind.RULE,
    match=_cascade | _mamba,
    affected=Affected("vllm", introduced="0.28.0"),
    adjustments=[
        Advise(f"{_CASCADE} has no effect: this vLLM has no cascade attention. Leave it out", when=_cascade),
        Advise(f"{_MAMBA} has no effect: set engine.enable_prefix_caching, which Mamba layers follow", when=_mamba),
    ],
    severity=Severity.NOISE,
    references=[report("vllm-project/vllm/pull/36318"), report("vllm-project/vllm/pull/55041")],
    evidence=StaticProbe(
        "vllm.model_executor.models.config", r'mamba_cache_mode == "none":\s+cache_config\.mamba_cache_mode = "align"'
    ),
    examples=[
        yes("qwen3", {_CASCADE: True}, vllm="0.32.0", advises="no cascade attention"),
        yes("nemotron_h", {_MAMBA: "align"}, vllm="0.33.0", purpose="serve", advises=_MAMBA),
        yes("nemotron_h", {_MAMBA: "none"}, vllm="0.28.0", advises="engine.enable_prefix_caching"),
        no("nemotron_h", {_MAMBA: "none", "engine.enable_prefix_caching": False}, vllm="0.31.0"),
        no("nemotron_h", {_MAMBA: "none"}, vllm="0.27.0"),
        no("qwen3", {_CASCADE: True}, vllm="0.31.0"),
        no("nemotron_h", {_MAMBA: "align"}, vllm="0.32.0"),
        no("qwen3", vllm="0.33.0"),
        unknown("qwen3", {_CASCADE: True}),
    ],
)
