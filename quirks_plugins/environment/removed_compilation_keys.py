"""Keys of ``compilation_config`` that vLLM no longer has: the engine does not start, and the error names no successor.

What happens: recipes that switched off Inductor or CUDA graphs for vLLM 0.11 (``use_inductor``, ``use_cudagraph``,
``full_cuda_graph``, ``level``) end with "Unexpected keyword argument". A user who deletes the key loses what it was for:
DeepScaleR's recipe, for instance, needs an engine without Inductor. NeMo RL's asynchronous engine translates ``use_inductor``.

When it can go: when recipes for such releases are not in use any more.

Evidence: all four were tried on vLLM 0.32.0. ``CompilationConfig`` was read in 0.11.0, which has all, in 0.15.1, which has
``level`` alone, and in 0.26.0 and 0.33.0, which have none; a static probe.
"""

from quirks_core import Affected, Kind, Quirk, Refuse, Severity, StaticProbe, no, report, setting, unknown, yes

_SLOT = "engine.compilation_config"
#: Removed keys, and what to set instead.
_INSTEAD = {
    "full_cuda_graph": f"{_SLOT}.cudagraph_mode: FULL for true, and no key for false",
    "level": f"{_SLOT}.mode, with the same number",
    "use_cudagraph": f"{_SLOT}.cudagraph_mode: NONE for false, and no key for true",
    "use_inductor": f"{_SLOT}.backend: eager for false, and no key for true",
}
_removed = {key: setting(f"{_SLOT}.{key}").is_set() for key in _INSTEAD}

QUIRK = Quirk(
    id="removed-compilation-keys",
    title="An engine with keys that compilation_config had in older releases does not start",
    kind=Kind.RULE,
    match=_removed["full_cuda_graph"] | _removed["level"] | _removed["use_cudagraph"] | _removed["use_inductor"],
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Refuse(f"{_SLOT} has no key {key} any more", f"set {instead}", when=_removed[key]) for key, instead in _INSTEAD.items()
    ],
    severity=Severity.CRASH,
    crash=r"(full_cuda_graph|level|use_cudagraph|use_inductor)\s+Unexpected keyword argument",
    references=[report("vllm-project/vllm/pull/29323"), report("NVIDIA-NeMo/RL/pull/1962")],
    evidence=StaticProbe(
        "vllm.config.compilation",
        r"\n    (full_cuda_graph|level|use_cudagraph|use_inductor): ",
        found_means_affected=False,
    ),
    examples=[
        yes("qwen3", {_SLOT: {"use_inductor": False}}, vllm="0.32.0", refuses="backend: eager"),
        yes("qwen3", {_SLOT: {"level": 0}}, vllm="0.26.0", purpose="serve", refuses="mode"),
        yes("qwen3", {_SLOT: {"use_cudagraph": False}}, vllm="0.33.0", refuses="cudagraph_mode: NONE"),
        yes("qwen3", {_SLOT: {"full_cuda_graph": True}}, vllm="0.33.0", refuses="cudagraph_mode: FULL"),
        no("qwen3", vllm="0.32.0"),
        unknown("qwen3", {_SLOT: {"use_inductor": False}}),
    ],
)
