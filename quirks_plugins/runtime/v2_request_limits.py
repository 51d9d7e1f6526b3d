"""On the V2 model runner, one request with too many stop ids, biases or allowed ids ends the engine.

What happens: a request with ``min_tokens`` and more than 128 tokens that end it, with more than 1024 biases (``logit_bias``),
or with more than 1024 ``allowed_token_ids``, ends the engine (``ValueError: Too many stop tokens``). All other requests are
lost. The V2 runner has buffers of these sizes (v1/worker/gpu/sample/logit_bias.py) and compares the counts in the worker, after
the request was accepted. vLLM uses it on CUDA and ROCm for nearly all models from 0.29.0 on, and for dense ones from 0.25 on;
the wrapper asks the engine itself. With speculative decoding, a request with ``logprob_token_ids`` gets no logprobs of these
tokens, silently (seen on 0.33.0 and an H200).

When it can go: when vLLM checks these counts in ``SamplingParams.verify``. An engine with vLLM 0.26.0 on an H200 died of 129
stop ids.
"""

from collections.abc import Callable
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, platform, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runtime.evidence import answer

QUIRK = Quirk(
    id="v2-request-limits",
    title="One request with more than 128 stop ids or 1024 biases ends an engine that uses the V2 model runner",
    match=~platform("cpu"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
        wrapper="quirks_plugins.runtime.v2_request_limits:wrap_process_inputs",
        expects=(
            "081a62decc4b",
            "c33e97eb5ac5",
            "05b2b7d4c591",
            "c45ab1152ca3",
            "fc64670b4f3f",
            "cbb05da50858",
            "8cf47aea8cde",
        ),
        reason="what a request may hold is checked in code, and no setting adds a check",
    ),
    severity=Severity.CRASH,
    crash=r"Too many stop tokens|EngineDeadError|EngineCore encountered an issue",
    references=[report("vllm-project/vllm/pull/32163"), report("vllm-project/vllm/pull/16529")],
    evidence=StaticProbe("vllm.v1.worker.gpu.sample.logit_bias", r"raise ValueError\(\s+f\"Too many stop tokens"),
    examples=[
        yes("qwen3", vllm="0.33.0", platform="cuda", patches="InputProcessor.process_inputs"),
        yes({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, vllm="0.26.0", platform="cuda", purpose="serve"),
        no("qwen3", vllm="0.33.0", platform="cpu"),
        unknown("qwen3", vllm="0.25.1", platform="cuda"),
    ],
    cost="microseconds for each request",
)


def wrap_process_inputs(process: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `process_inputs` that refuses a request with more ids than the V2 runner has room for, or that it ignores."""

    def process_within_limits(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = process(self, *args, **kwargs)
        params = getattr(request, "sampling_params", None)
        if params is not None and self.vllm_config.use_v2_model_runner:
            _check(params, drafts=self.vllm_config.speculative_config is not None)
        return request

    return process_within_limits


def _check(params: Any, *, drafts: bool) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.worker.gpu.sample import logit_bias

    if drafts and params.logprob_token_ids:
        raise VLLMValidationError("logprob_token_ids: this engine's model runner returns none of them beside drafts")
    stops = len(params.all_stop_token_ids) if params.min_tokens > 0 else 0
    for count, limit, what in (
        (len(params.allowed_token_ids or ()), logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS, "allowed token ids"),
        (len(params.logit_bias or ()), logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS, "logit biases"),
        (stops, logit_bias.MAX_NUM_STOP_TOKEN_IDS, "stop token ids with min_tokens"),
    ):
        if count > limit:
            raise VLLMValidationError(f"{count} {what}: this engine's model runner takes {limit} at most")


async def scenario(lab: Lab) -> Outcome:
    """A request with 200 stop ids is refused, and the engine answers the next one."""
    from worker.lab.kit.lab import CannotShowError, Outcome

    async with lab.worker(lab.checkpoint("qwen3"), {"engine": {"load_format": "auto"}}) as worker:
        engine = lab.engine(worker)
        if not engine.vllm_config.use_v2_model_runner:
            raise CannotShowError("the engine uses the V1 model runner, which has no such limits")
        refused = await answer(engine, "many", min_tokens=2, stop_token_ids=list(range(3, 203)))
        got = await answer(engine, "next")
    passed = "stop token ids with min_tokens" in refused and got == "4 tokens"
    return Outcome(passed, "a request with 200 stop ids, and the next one", f"{refused}; {got}", "refused; 4 tokens")
