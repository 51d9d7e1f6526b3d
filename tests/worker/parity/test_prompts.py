"""Prompts are token ids that the model has, and that fit, before any engine starts."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.configuration.sections import ModelSection
from worker.lab.parity.prompts import TEXTS, Prompts, load_prompts


@pytest.fixture
def tiny(tiny_checkpoint):
    return ModelSection(path=str(tiny_checkpoint("qwen3")))


@pytest.fixture
def file(tmp_path):
    def write(name, *lines):
        path = tmp_path / name
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


def test_without_a_file_there_are_prompts_of_different_lengths(tiny):
    found = load_prompts(tiny)

    assert len(found.rows) == len(TEXTS)
    assert len({len(row) for row in found.rows}) > 4


def test_a_file_holds_texts_or_json_lines(tiny, file):
    texts = load_prompts(tiny, file=file("p.txt", "one", "", "two three", "   "))
    ids = load_prompts(tiny, file=file("p.jsonl", '{"prompt": "one"}', '{"prompt_token_ids": [5, 6, 7]}'))

    assert [texts.decode(row) for row in texts.rows] == ["one", "two three"]
    assert (ids.decode(ids.rows[0]), ids.rows[1]) == ("one", (5, 6, 7))


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("p.txt", [""], "holds no prompt"),
        ("p.jsonl", ['{"text": 1}', "{}", '{"prompt": "a"}'], r"lines 1, 2 are not JSON objects with 'prompt'"),
        ("p.jsonl", ['{"prompt_token_ids": []}', '{"prompt": "a"}', '{"prompt_token_ids": []}'], "prompts 0, 2 are empty"),
        ("p.jsonl", ['{"prompt_token_ids": [1, 9999]}', '{"prompt_token_ids": [-1]}'], r"prompts 0, 1 hold .* 0\.\.511"),
    ],
)
def test_everything_wrong_with_a_file_is_named_at_once(tiny, file, name, lines, message):
    with pytest.raises(UsageError, match=message):
        load_prompts(tiny, file=file(name, *lines))


def test_texts_without_a_tokenizer_are_refused(model, file):
    for text in (None, file("p.txt", "one")):
        with pytest.raises(UsageError, match="texts need a tokenizer"):
            load_prompts(ModelSection(path=str(model(vocab_size=50))), file=text)


def test_prompts_that_leave_no_room_are_all_named():
    prompts = Prompts(((1,) * 10, (2,) * 3, (3,) * 9))

    prompts.check(18, 8)
    with pytest.raises(UsageError, match=r"prompts 0 \(10 tokens\), 2 \(9 tokens\) leave no room for 8 new tokens .* = 16"):
        prompts.check(16, 8)


def test_long_prompts_of_the_length_asked_for_begin_differently():
    found = Prompts(((1, 2), (3, 4, 5))).long(7, 2)

    assert found == ((1, 2, 3, 4, 5, 1, 2), (3, 4, 5, 1, 2, 3, 4))
