"""How requests are sampled: as planned, unless the result is not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quirks_core.configuration.config import GenerationConfig
from worker.server.errors import RequestError

#: Fields that change the distribution sampled from, and the value at which they do not. What a checkpoint's
#: ``generation_config.json`` sets for them must not apply either, so all of them are set.
_NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
#: Further such fields, for which only an empty value is neutral, or none: vLLM 0.30 and 0.31 have ``watermarking=True`` in each
#: request, which does nothing in an engine without a watermark.
_EMPTY = ("logit_bias", "allowed_token_ids", "bad_words", "use_beam_search", "watermarking")


class SamplingProfile:
    """Sets the parameters that a request does not set, and in a rollout refuses those that would make it off-policy.

    Args:
        config: The configuration; in a rollout no request may have another distribution than its sampling or validation.
    """

    def __init__(self, config: GenerationConfig) -> None:
        self._sampling = sampling = config.sampling
        self._fixed = config.purpose == "rollout"
        self._planned = {
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            "top_k": sampling.top_k,
            **_NEUTRAL,
        }
        asked = {"temperature": config.server.validation_temperature, "top_p": config.server.validation_top_p}
        validation = {name: value for name, value in asked.items() if value is not None}
        self._validation = {**self._planned, **validation} if validation else None

    def complete(self, request: Any) -> None:
        """Completes a validated request, in place.

        Args:
            request: vLLM's ``ChatCompletionRequest`` or ``CompletionRequest``.

        Raises:
            RequestError: It has another distribution than the rollout's or the validation's.
        """
        typed = set(request.model_fields_set)
        for name, planned in self._chosen(request).items():
            if getattr(request, name, None) is None:
                setattr(request, name, planned)
        fields = vars(request)  # reading max_tokens as an attribute warns: OpenAI calls it deprecated
        most = [fields[name] for name in ("max_completion_tokens", "max_tokens") if fields.get(name) is not None]
        if not most:
            most = [self._sampling.max_new_tokens]
            setattr(request, "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens", most[0])
        if "min_tokens" not in typed:
            request.min_tokens = min(self._sampling.min_new_tokens, most[0])
        if "ignore_eos" not in typed:
            request.ignore_eos = self._sampling.ignore_eos
        self._complete_stops(request, typed)

    def _chosen(self, request: Any) -> Mapping[str, float]:
        """Returns the profile that a request is sampled with: the first one that agrees with all its fields."""
        profile = self._planned
        if self._fixed:
            if (differing := _differing(request, profile)) and self._validation and not _differing(request, self._validation):
                profile, differing = self._validation, []
            self._refuse(request, differing)
        return profile

    def _refuse(self, request: Any, differing: list[str]) -> None:
        planned = self._planned
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
            if other := self._validation:
                remedy += f"; for validation send temperature = {other['temperature']:g} and top_p = {other['top_p']:g}"
            raise RequestError(
                f"{problem}; the trainer would learn from samples of another policy: {remedy}", parameter=next(iter(problems))
            )

    def _complete_stops(self, request: Any, typed: set[str]) -> None:
        sampling = self._sampling
        request.stop_token_ids = list(dict.fromkeys([*(request.stop_token_ids or ()), *sampling.stop_token_ids]))
        if sampling.stop_strings:
            own = [request.stop] if isinstance(request.stop, str) else request.stop or ()
            request.stop = list(dict.fromkeys([*own, *sampling.stop_strings]))
            if "include_stop_str_in_output" not in typed:
                request.include_stop_str_in_output = True  # as in every other generation of the worker


def _differing(request: Any, profile: Mapping[str, float]) -> list[str]:
    """Returns the fields that a request has and that the profile has another value of."""
    given = {name: value for name in profile if (value := getattr(request, name, None)) is not None}
    if given.get("top_k") in (0, -1) and profile["top_k"] in (0, -1):  # vLLM takes both for all tokens
        del given["top_k"]
    return [name for name, value in given.items() if value != profile[name]]
