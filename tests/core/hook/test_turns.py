"""Prompts that continue an answer in other token ids are counted, and nothing else is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quirks_core.hook import turns
from quirks_core.hook.turns import Turns

#: The text of each id: letters, pairs of letters from 100 on, and the end of a turn.
TEXTS = {number: chr(97 + number % 26) for number in range(26)}
TEXTS |= {100 + number: TEXTS[number] + TEXTS[number + 1] for number in range(25)}
TEXTS |= {200: "<end>", 201: "<user>"}
QUESTION = [201, *range(20), *range(20), 200]
ANSWER = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
NEXT = [201, 3, 1, 200]


def decode(ids):
    return "".join(TEXTS[one] for one in ids)


def request(name, prompt, answer=()):
    return SimpleNamespace(request_id=name, prompt_token_ids=list(prompt), output_token_ids=list(answer))


def answered(found, prompt, *answers):
    """Gives requests with one prompt, which end with these answers."""
    for number, answer in enumerate(answers):
        found.start(request(str(number), prompt, answer))
    found.step([])
    found.step([*map(str, range(len(answers))), "unknown"])
    return found


@pytest.fixture
def asked():
    """One question with two answers."""
    return answered(Turns(decode), QUESTION, [9, *ANSWER[::-1], 200], [*ANSWER, 200])


@pytest.mark.parametrize(
    ("prompt", "counts"),
    [
        pytest.param([*QUESTION, *ANSWER, 200, *NEXT], (1, 0), id="the ids"),
        pytest.param([*QUESTION, *ANSWER, *NEXT], (1, 0), id="the ids without the end"),
        pytest.param([*QUESTION, 100, 102, 104, 106, 108, 200, *NEXT], (1, 1), id="the text in other ids"),
        pytest.param([*QUESTION, *ANSWER[:3], 103, 105, 107, 9, 200, *NEXT], (1, 1), id="other ids later"),
        pytest.param([*QUESTION[:-3], 118, 200, *ANSWER, 200, *NEXT], (1, 1), id="ids joined before the answer"),
        pytest.param([*QUESTION, *ANSWER[5:], 200, *NEXT], (0, 0), id="a part of the text"),
        pytest.param([*QUESTION], (0, 0), id="the question again"),
        pytest.param([*QUESTION, *ANSWER[:4]], (0, 0), id="an answer that is cut off"),
        pytest.param([201, *range(1, 21), *ANSWER, 200, *NEXT], (0, 0), id="another question"),
        pytest.param([], (0, 0), id="embeddings"),
    ],
)
def test_only_the_text_of_an_answer_in_other_ids_counts(asked, prompt, counts):
    asked.start(request("next", prompt))

    assert asked.step([]) is (counts[1] == 1)
    assert (asked.continued, asked.encoded_again) == counts


def test_an_answer_counts_that_ends_as_the_next_prompt_comes():
    found = Turns(decode)
    found.start(request("first", QUESTION, [*ANSWER, 200]))
    found.step([])
    found.start(request("second", [*QUESTION, 100, 102, 104, 106, 108, 200, *NEXT]))

    assert found.step(["first"])


def test_a_turn_is_compared_with_the_turn_before_it_alone(asked):
    again = [*QUESTION, 100, 102, 104, 106, 108, 200, *NEXT]
    answered(asked, again, [*ANSWER, 200])

    asked.start(request("third", [*again, *ANSWER, 200, *NEXT]))

    assert not asked.step([])
    assert (asked.continued, asked.encoded_again) == (2, 1)


def test_the_oldest_answers_are_dropped(monkeypatch, asked):
    monkeypatch.setattr(turns, "_KEPT", 60)
    for number in range(9):
        answered(asked, [number] * 70, ANSWER)

    asked.start(request("old", [*QUESTION, *ANSWER, 200, *NEXT]))
    asked.start(request("new", [*[8] * 70, *ANSWER, 200]))
    asked.step([])

    assert asked.continued == 1
