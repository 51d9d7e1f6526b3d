"""Joining the ids that a model produced with what a chat template renders."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quirks_core.base.errors import QuirksError
from worker.server.errors import PrefixTokensError, RequestError
from worker.server.prefix_tokens import Prefix, prefix_of, replace_prefix_tokens, without_answers, without_carried

EOS = 2
TOKENIZER = SimpleNamespace(eos_token_id=EOS)
#: No end of turn.
words = st.lists(st.integers(3, 99), max_size=6)


@pytest.mark.parametrize(
    ("tokenizer", "model", "template_prefix", "template", "reason"),
    [
        pytest.param(TOKENIZER, [7, 2], [9, 9, 9], [9, 9, 9, 2, 10], "ends no turn of the required prefix", id="no end"),
        pytest.param(TOKENIZER, [7, 2], [9, 2, 9, 2], [9, 2, 9, 10], "2 turns .* only 1 of the whole", id="template loses one"),
        pytest.param(TOKENIZER, [7, 2], [9, 2], [], "1 turns .* only 0 of the whole", id="empty template"),
        pytest.param(SimpleNamespace(eos_token_id=None), [7], [9, 2], [9, 2], "has no eos_token_id", id="no eos"),
    ],
)
def test_renderings_that_do_not_fit_are_an_error_of_ours(tokenizer, model, template_prefix, template, reason):
    with pytest.raises(PrefixTokensError, match=reason) as caught:
        replace_prefix_tokens(tokenizer, model, template_prefix, template)

    assert isinstance(caught.value, QuirksError)
    assert caught.value.status == 400


def test_messages_without_answers_keep_their_structure():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "<eos>"}]},
        {"role": "assistant", "content": "<eos>", "name": "it"},
        {"role": "assistant", "content": None, "tool_calls": ["a call"], "reasoning_content": "<eos>"},
    ]

    assert without_answers(messages) == [
        messages[0],
        {"role": "assistant", "content": "x", "name": "it"},
        {"role": "assistant", "content": "", "tool_calls": ["a call"]},
    ]


def test_a_turn_may_end_with_another_token_than_eos():
    joined = replace_prefix_tokens(TOKENIZER, [50, 51, 106], [9, 106, 5, 106], [9, 106, 5, 106, 77], end_token_id=106)

    assert joined == [50, 51, 106, 77]


@given(
    turns=st.lists(words, min_size=1, max_size=4),
    stripped=st.lists(words, min_size=4, max_size=4),
    tail=words,
    newline=words,
    model=st.lists(st.integers(0, 200), min_size=1, max_size=20),
)
def test_the_result_is_the_models_ids_with_the_templates_tail(turns, stripped, tail, newline, model):
    """Whatever the template makes of history, and whatever the model produced, ends of turns in its midst included."""
    prefix = [token for turn in turns for token in (*turn, EOS)] + newline
    template = [token for turn in stripped[: len(turns)] for token in (*turn, EOS)] + tail

    joined = replace_prefix_tokens(TOKENIZER, model, prefix, template)

    assert joined[: len(model)] == model
    assert joined[len(model) :] == (tail if model[-1] == EOS else [EOS, *tail])
    assert replace_prefix_tokens(TOKENIZER, [], prefix, template) == template


def test_an_explicit_prefix_ends_with_the_last_assistant():
    """Without any assistant it stands for all messages."""
    for roles, messages in (("user assistant tool assistant user", 4), ("system user", 2)):
        said = [{"role": role} for role in roles.split()]

        assert prefix_of(said, [5, 6]) == Prefix((5, 6), messages, "required_prefix_token_ids")


def test_the_last_message_that_carries_ids_counts():
    carrying = [{"role": "assistant", "prompt_token_ids": [n], "generation_token_ids": [n, n]} for n in (1, 2)]
    messages = [{"role": "user"}, carrying[0], {"role": "user"}, carrying[1], {"role": "assistant"}, {"role": "user"}]

    assert prefix_of(messages) == Prefix((2, 2, 2), 4, "messages[3]")
    assert prefix_of(messages, [9]).token_ids == (9,)


_EMPTY = {"role": "assistant", "prompt_token_ids": [], "generation_token_ids": []}


@pytest.mark.parametrize("messages", [[{"role": "user"}, 7, None], [_EMPTY]])
def test_a_request_without_ids_requires_none(messages):
    assert prefix_of(messages) is None


@pytest.mark.parametrize("ids", [5, [1, -1], [True]])
def test_ids_that_are_none_are_named(ids):
    with pytest.raises(RequestError, match="required_prefix_token_ids must be a list of token ids"):
        prefix_of([{"role": "user"}], ids)


def test_what_a_message_carries_never_reaches_a_template():
    message = {"role": "assistant", "content": "x", "prompt_token_ids": [1], "generation_log_probs": []}

    assert without_carried([message, 3]) == [{"role": "assistant", "content": "x"}, 3]
