"""Text that begins with BOS does not get a second one, and raw text still gets its own."""

from __future__ import annotations

import json

import pytest

from worker.engine import vllm_adapter

SLOT = "tokenizer.add_special_tokens"


class Tokenizer:
    """Adds BOS, 1, unless told otherwise, and encodes each character as its code."""

    bos_token = "<s>"  # noqa: S105 - a token of texts, no password

    def encode(self, text, add_special_tokens=True):
        """Encodes a text."""
        return [1] * add_special_tokens + [1] * text.startswith("<s>") + list(text.removeprefix("<s>").encode())


@pytest.mark.parametrize(
    ("special", "rendered", "raw"),
    [(None, [1, 1, 97], [1, 97]), ("always", [1, 1, 97], [1, 97]), ("once", [1, 97], [1, 97]), ("never", [1, 97], [97])],
)
def test_text_is_encoded_with_special_tokens_as_the_setting_says(special, rendered, raw):
    assert [vllm_adapter.encoded(Tokenizer(), text, special) for text in ("<s>a", "a")] == [rendered, raw]


@pytest.fixture
def tokenizer(tmp_path):
    """Writes the tokenizer's files into the folder of the model that is planned for."""

    def write(adds=True, template="{{ bos_token }}{{ messages }}"):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        settings = {"bos_token": "<s>", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        first = {"SpecialToken": {"id": "<s>" if adds else "[CLS]", "type_id": 0}}
        processor = {"type": "TemplateProcessing", "single": [first, {"Sequence": {"id": "A", "type_id": 0}}]}
        content = {"added_tokens": [], "post_processor": processor, "model": {"type": "BPE", "vocab": {}, "merges": []}}
        (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")

    return write


def test_a_tokenizer_and_a_template_that_both_add_bos_make_it_once_and_what_was_typed_stays(plan_for, tokenizer):
    tokenizer()

    assert plan_for("llama").changes == {SLOT: "once"}
    assert plan_for("llama", {SLOT: "always"}).statuses == {SLOT: "kept_user"}


@pytest.mark.parametrize("files", [{"adds": False}, {"template": "{{ messages }}"}])
def test_one_of_them_alone_changes_nothing(plan_for, tokenizer, files):
    tokenizer(**files)

    assert plan_for("llama").state == "not_matched"


def test_a_model_without_a_tokenizer_is_left_alone_without_a_word(plan_for):
    outcome = plan_for("llama")

    assert (outcome.state, outcome.warnings) == ("not_matched", [])
