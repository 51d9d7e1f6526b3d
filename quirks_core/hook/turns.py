"""Counts prompts that continue an answer of the engine in other token ids: a client sent text, which was encoded again.

Encoding the text of sampled ids need not return them. A trainer that computes logprobs of the ids of such a prompt, or of the
whole conversation, learns ids that no policy sampled. The engine's core has the ids of both sides, whatever the client sends.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

#: Answers are found by a digest of the prompt before them, up to a multiple of this many ids.
_BLOCK = 64
#: Ids at the end of a prompt that encoding may join with the answer's first ones.
_SEAM = 4
#: Ids from the first difference on whose text is compared, and the fewest that show anything.
_WINDOW, _FEWEST = 16, 4
#: Ids that are kept, of 4 bytes each.
_KEPT = 1 << 20
#: Answers that are kept of prompts with equal digests, such as the samples of one prompt.
_ALIKE = 512


class _Answer(NamedTuple):
    """The end of a prompt, and the answer to it."""

    ids: array[int]
    prompt: int


class Turns:
    """The latest answers of an engine, and the prompts that continue one.

    Attributes:
        continued: How many prompts continue an answer's text.
        encoded_again: How many of them have other ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Begins without answers; `decode` returns the text of ids, special tokens included."""
        self.continued = self.encoded_again = 0
        self._decode = decode
        self._running: dict[str, Any] = {}
        self._new: list[Any] = []
        self._answers: OrderedDict[bytes, list[_Answer]] = OrderedDict()
        self._lengths: Counter[int] = Counter()
        self._kept = 0

    def start(self, request: Any) -> None:
        """Takes a request of vLLM's scheduler; `step` compares its prompt, once it has the answers that ended before it."""
        if request.prompt_token_ids:
            self._running[request.request_id] = request
            self._new.append(request)

    def step(self, finished: Iterable[str]) -> bool:
        """Takes the requests that ended until this step; returns whether a new one has an answer's text in other ids."""
        before = self.encoded_again
        for name in finished:
            if (request := self._running.pop(name, None)) is not None and len(request.output_token_ids) > _FEWEST:
                self._keep(array("I", request.prompt_token_ids), array("I", request.output_token_ids))
        new, self._new = self._new, []
        for request in new:
            found = self._continues(array("I", request.prompt_token_ids))
            self.continued += found is not None
            self.encoded_again += found is True
        return self.encoded_again > before

    def _keep(self, prompt: array[int], answer: array[int]) -> None:
        """Keeps an answer, and drops the oldest ones."""
        before = max(len(prompt) - _SEAM, 0) // _BLOCK * _BLOCK
        ((_, key),) = self._prefixes(prompt, [before])
        self._lengths[before] += key not in self._answers
        answers = self._answers.setdefault(key, [])
        answers.append(_Answer(prompt[before:] + answer, len(prompt) - before))
        self._answers.move_to_end(key)
        self._kept += len(answers[-1].ids)
        if len(answers) > _ALIKE:
            self._kept -= len(answers.pop(0).ids)
        while self._kept > _KEPT:
            key, answers = self._answers.popitem(last=False)
            self._lengths[int.from_bytes(key[:8])] -= 1
            self._kept -= sum(len(one.ids) for one in answers)

    def _continues(self, prompt: array[int]) -> bool | None:
        """Returns whether a prompt has other ids than the answer that it continues; None if it continues none."""
        lengths = sorted(length for length, count in self._lengths.items() if count and length < len(prompt))
        for length, key in reversed(list(self._prefixes(prompt, lengths))):
            rest = prompt[length:]
            found = {self._differs(answer, rest) for answer in self._answers.get(key, ())} - {None}
            if found:
                return all(found)
        return None

    def _differs(self, answer: _Answer, rest: array[int]) -> bool | None:
        """Compares an answer with what a prompt has in its place; the answer's last id may be left out there."""
        same = max(answer.prompt - _SEAM, 0)
        whole = answer.ids[:-1]
        if len(rest) <= answer.prompt or rest[:same] != whole[:same]:
            return None
        if rest[: len(whole)] == whole:
            return False
        first = next((at for at, (one, other) in enumerate(zip(whole, rest, strict=False)) if one != other), len(rest))
        ours, theirs = whole[first : first + _WINDOW], rest[first : first + _WINDOW]
        if min(len(ours), len(theirs)) < _FEWEST:
            return None
        context = whole[max(first - 1, 0) : first]  # a decoder may drop the space at the beginning of a text
        texts = [self._decode((context + ids).tolist()).rstrip("\ufffd") for ids in (ours, theirs)]
        return True if len({text[: min(map(len, texts))] for text in texts}) == 1 else None

    @staticmethod
    def _prefixes(ids: array[int], lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Yields lengths, which ascend, each with a key of so many of the first ids."""
        digest, done = hashlib.blake2b(digest_size=16), 0
        for length in lengths:
            digest.update(ids[done:length])
            done = length
            yield length, length.to_bytes(8) + digest.digest()
