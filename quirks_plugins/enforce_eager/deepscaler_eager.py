"""DeepScaleR recipes: NeMo RL reports wrong logprobs of rollouts with Inductor, and with one of vLLM's kernels.

What happens: NeMo RL reports that logprobs of the engine differ from the trainer's in spikes, and training curves fall behind,
when rollouts run on vLLM's default compilation. It first turned off all of it, CUDA graphs included (NVIDIA-NeMo/RL#857), and
found later that it is enough not to use Inductor (#1014, #1962). Without Inductor vLLM uses its own kernels, and since vLLM
0.20 the one for rotary embeddings gives wrong logprobs on long sequences (#2981).

When it can go: when a change of vLLM or PyTorch is shown to have made it superfluous.

Evidence: training curves and logprobs in the references; nothing of it was reproduced by us.
"""

from quirks_core import Default, Fact, Quirk, Severity, fix, model_name, no, package, purpose, report, yes

_SLOT = "engine.compilation_config"
_KERNELS = {"custom_ops": ["all", "-rotary_embedding"]}
#: What vLLM does with the kernels depends on the backend.
_typed_backend = Fact(f"{_SLOT}.backend").is_set()

QUIRK = Quirk(
    id="deepscaler-eager",
    title="NeMo RL reports wrong logprobs of DeepScaleR where Inductor compiled the rollout engine",
    match=purpose("rollout") & (model_name("deepscaler") | Fact("recipe").matches("deepscaler")),
    adjustments=[
        Default(_SLOT, {"backend": "eager"}),
        Default(
            _SLOT,
            _KERNELS,
            reason="without Inductor vLLM uses its own kernels, and the one for rotary embeddings was reported as wrong",
            when=package("vllm", introduced="0.20.0") & ~_typed_backend,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("NVIDIA-NeMo/RL/pull/857"),
        fix("NVIDIA-NeMo/RL/pull/1014"),
        fix("NVIDIA-NeMo/RL/pull/1962"),
        report("NVIDIA-NeMo/RL/pull/2981"),
        fix("NVIDIA-NeMo/RL/pull/3097"),
    ],
    examples=[
        yes(name="DeepSeek-R1-Distill-Qwen-1.5B", recipe="grpo-deepscaler-1.5b-8K"),
        yes(name="DeepScaleR-1.5B-Preview", vllm="0.32.0", gives={_SLOT: {"backend": "eager", **_KERNELS}}),
        yes(name="DeepScaleR-1.5B-Preview", vllm="0.16.0", gives={_SLOT: {"backend": "eager"}}),
        yes(settings={_SLOT: {"backend": "inductor"}}, vllm="0.32.0", recipe="DeepScaleR", gives={}),
        no(name="DeepSeek-R1-Distill-Qwen-1.5B", recipe="grpo-math-1B"),
        no(name="DeepScaleR-1.5B-Preview", purpose="serve"),
    ],
    cost="none seen: 27 840 tokens/s, with Inductor 27 420, eager 6 980 (H200, vLLM 0.26.0, Qwen3-1.7B shape, 256 requests)",
)
