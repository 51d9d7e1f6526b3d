"""Records what the engine generates for a request, so that the reply's message can carry it."""

from __future__ import annotations

import json
from typing import Any

#: The lowest logprob of a reply, as in vLLM's own: JSON has no infinity.
_LOWEST = -9999.0


class Record:
    """What the engine generated for one request: token ids and their logprobs, by index of the choice.

    Attributes:
        failure: Why the request ended before its reply was complete; None if it did not.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._prompt: list[int] = []
        self._token_ids: dict[int, list[int]] = {}
        self._logprobs: dict[int, list[float]] = {}
        self._versions: dict[int, list[tuple[str, int, int]]] = {}

    @property
    def empty(self) -> bool:
        """Whether no token was generated."""
        return not any(self._token_ids.values())

    def add(self, result: Any) -> None:
        """Notes one of vLLM's ``RequestOutput``s: the whole of the generation, or the next piece of it."""
        self._prompt = list(result.prompt_token_ids or self._prompt)
        for output in result.outputs:
            self._token_ids.setdefault(output.index, []).extend(output.token_ids)
            logprobs = self._logprobs.setdefault(output.index, [])
            for token, entry in zip(output.token_ids, output.logprobs or (), strict=False):
                logprobs.append(max(entry[token].logprob, _LOWEST))
            if spans := getattr(output, "weight_versions", None):  # from vLLM 0.32 on, with the last piece
                self._versions[output.index] = [(span.version, span.start, span.end) for span in spans]

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self.failure is not None:
            raise self.failure

    def carried(self, index: int, routed_experts: str | None = None) -> dict[str, Any]:
        """Returns the fields of one choice's message.

        Args:
            index: The choice.
            routed_experts: vLLM's base64 text of the experts that each token went to, if it made one.
        """
        fields: dict[str, Any] = {
            "prompt_token_ids": self._prompt,
            "generation_token_ids": self._token_ids.get(index, []),
            "generation_log_probs": self._logprobs.get(index, []),
        }
        if index in self._versions:
            fields["weight_versions"] = self._versions[index]
        if routed_experts is not None:
            fields["routed_experts"] = routed_experts
        return fields


def with_carried(event: str, record: Record) -> str:
    """Puts the fields into the deltas of a server-sent event."""
    chunk = json.loads(event.removeprefix("data: "))
    for choice in chunk["choices"]:
        choice["delta"] |= record.carried(choice["index"])
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
