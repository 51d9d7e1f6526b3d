"""How requests are sampled: as planned, unless the result is not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quirks_core.configuration.config import GenerationConfig
from worker.server.errors import RequestError

#: Fields that change the distribution sampled from, and the value at which they do not.
_NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
#: Further such fields, for which only an empty value is neutral, or none: vLLM 0.30 and 0.31 have ``watermarking=True`` in each
#: request, which does nothing in an engine without a watermark.
_EMPTY = ("logit_bias", "allowed_token_ids", "bad_words", "use_beam_search", "watermarking")


class SamplingProfile:
    """Sets the parameters that a request does not set, and in a rollout refuses those that would make it off-policy.

    Args:
        config: The configuration; in a rollout no request may have another distribution than its sampling or validation.

    Attributes:
        defaults: What vLLM's handlers take for that which a request leaves open, instead of the values of the checkpoint's
            ``generation_config.json``; stop tokens they add to the request's own.
    """

    def __init__(self, config: GenerationConfig) -> None:
        self._sampling = sampling = config.sampling
        self._fixed = config.purpose == "rollout"
        own = {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p), "top_k": sampling.top_k}
        self.defaults: dict[str, Any] = {
            **own,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
        }
        self._planned = own | _NEUTRAL
        asked = {"temperature": config.server.validation_temperature, "top_p": config.server.validation_top_p}
        self._validation = {name: value for name, value in asked.items() if value is not None}

    def complete(self, request: Any) -> None:
        """Completes a validated request, in place.

        Args:
            request: vLLM's ``ChatCompletionRequest`` or ``CompletionRequest``.

        Raises:
            RequestError: It has another distribution than the rollout's or the validation's.
        """
        sampling, typed = self._sampling, request.model_fields_set
        if self._fixed:
            self._check(request)
        if "min_tokens" not in typed:
            request.min_tokens = sampling.min_new_tokens
        if "ignore_eos" not in typed:
            request.ignore_eos = sampling.ignore_eos
        if sampling.stop_strings:
            own = [request.stop] if isinstance(request.stop, str) else request.stop or ()
            request.stop = list(dict.fromkeys([*own, *sampling.stop_strings]))
            if "include_stop_str_in_output" not in typed:
                request.include_stop_str_in_output = True  # as in every other generation of the worker

    def _check(self, request: Any) -> None:
        """Makes sure that all fields agree with the planned profile, or all with the validation's, which is set then."""
        planned = self._planned
        differing = _differing(request, planned)
        if differing and self._validation and not _differing(request, planned | self._validation):
            differing = []
            for name, value in self._validation.items():
                setattr(request, name, value)
        problems = {
            name: f"{name} = {getattr(request, name):g} is not the rollout's {name} = {planned[name]:g}" for name in differing
        }
        filled = [name for name in _EMPTY if name in request.model_fields_set and getattr(request, name)]
        problems |= {name: f"{name} is not the rollout's, which has none" for name in filled}
        if getattr(request, (name := "thinking_token_budget"), None) is not None:
            problems[name] = f"{name} is not the rollout's, which has none: it forces tokens"
        if request.min_tokens not in (0, least := self._sampling.min_new_tokens):
            problems["min_tokens"] = (
                f"min_tokens = {request.min_tokens} is not the rollout's sampling.min_new_tokens = {least}: it masks the "
                "tokens that end a reply, which shifts the logprobs of all others"
            )
        if problems:
            problem = "; ".join(problems.values())
            remedy = "leave it out, or change the worker's sampling section (or its purpose, if this is not trained on)"
            if self._validation:
                other = planned | self._validation
                remedy += f"; for validation send temperature = {other['temperature']:g} and top_p = {other['top_p']:g}"
            raise RequestError(
                f"{problem}; the trainer would learn from samples of another policy: {remedy}", parameter=next(iter(problems))
            )


def _differing(request: Any, profile: Mapping[str, float]) -> list[str]:
    """Returns the fields that a request has and that the profile has another value of."""
    given = {name: value for name in profile if (value := getattr(request, name, None)) is not None}
    if given.get("top_k") in (0, -1) and profile["top_k"] in (0, -1):  # vLLM takes both for all tokens
        del given["top_k"]
    return [name for name, value in given.items() if value != profile[name]]
