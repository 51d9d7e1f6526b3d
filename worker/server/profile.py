"""How requests are sampled: as the plan says, unless nobody trains on the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worker.server.errors import RequestError

if TYPE_CHECKING:
    from quirks_core.config import SamplingSection

#: Fields that change the distribution sampled from, and the value at which they do not. What a checkpoint's
#: ``generation_config.json`` says of them must not come in by the back door either, so none is left open.
_NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
#: More of them, where only empty is neutral.
_EMPTY = ("logit_bias", "allowed_token_ids", "bad_words", "use_beam_search")


class SamplingProfile:
    """Fills what a request leaves open, and in a rollout refuses what would make it off-policy.

    Args:
        sampling: What the plan says.
        fixed: A trainer learns from the samples: no request may ask for another distribution.
        longest: The longest sequence of the engine, prompt and generation together, in tokens.
    """

    def __init__(self, sampling: SamplingSection, *, fixed: bool, longest: int) -> None:
        self._sampling = sampling
        self._fixed = fixed
        self._longest = longest
        self._planned = {
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            "top_k": sampling.top_k,
            **_NEUTRAL,
        }

    def complete(self, request: Any) -> None:
        """Fills a validated chat request, in place.

        Args:
            request: vLLM's ``ChatCompletionRequest``.

        Raises:
            RequestError: It asks for another distribution than the rollout's, or for an impossible number of tokens.
        """
        if self._fixed:
            self._refuse_others(request)
        for name, planned in self._planned.items():
            if getattr(request, name, None) is None:
                setattr(request, name, planned)
        self._complete_length(request)
        self._complete_stops(request)

    def _refuse_others(self, request: Any) -> None:
        problems = []
        for name, planned in self._planned.items():
            given = getattr(request, name, None)
            if given is not None and _comparable(name, given) != _comparable(name, planned):
                problems.append((name, f"{name} = {given:g} is not the rollout's {name} = {planned:g}"))
        problems += [(name, f"{name} is not the rollout's, which has none") for name in _EMPTY if getattr(request, name, None)]
        if problems:
            told = "; ".join(text for _, text in problems)
            remedy = "leave it out, or change the worker's sampling section (or its purpose, if nobody trains on this)"
            raise RequestError(
                f"{told}; the trainer would learn from samples of another policy: {remedy}", parameter=problems[0][0]
            )

    def _complete_length(self, request: Any) -> None:
        fields = vars(request)  # reading max_tokens as an attribute warns: OpenAI calls it deprecated
        name = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
        given = fields.get(name)
        if given is None:
            request.max_completion_tokens = self._sampling.max_new_tokens
        elif not 1 <= given <= self._longest:
            raise RequestError(
                f"{name} = {given} is outside 1..{self._longest} (engine.max_model_len = {self._longest})", parameter=name
            )

    def least(self, request: Any) -> int:
        """Returns the fewest tokens to generate if the request does not say; what room there is cuts it further."""
        return 0 if "min_tokens" in request.model_fields_set else self._sampling.min_new_tokens

    def _complete_stops(self, request: Any) -> None:
        sampling, typed = self._sampling, request.model_fields_set
        if "ignore_eos" not in typed:
            request.ignore_eos = sampling.ignore_eos
        request.stop_token_ids = list(dict.fromkeys([*(request.stop_token_ids or ()), *sampling.stop_token_ids]))
        if sampling.stop_strings:
            own = [request.stop] if isinstance(request.stop, str) else request.stop or ()
            request.stop = list(dict.fromkeys([*own, *sampling.stop_strings]))
            if "include_stop_str_in_output" not in typed:
                request.include_stop_str_in_output = True  # as in every other generation of the worker


def _comparable(name: str, value: float) -> float:
    """Of ``top_k``, vLLM takes both 0 and -1 for all tokens."""
    return -1 if name == "top_k" and value == 0 else value
