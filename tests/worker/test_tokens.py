"""Special tokens of texts."""

from __future__ import annotations

import pytest

from worker.engine import vllm_adapter


class Tokenizer:
    """Adds BOS, 1, by default, and encodes each character as its code."""

    bos_token = "<s>"  # noqa: S105 - a token of texts, no password

    def encode(self, text, add_special_tokens=True):
        """Encodes a text."""
        return [1] * add_special_tokens + [1] * text.startswith("<s>") + list(text.removeprefix("<s>").encode())


@pytest.mark.parametrize(
    ("special", "rendered", "raw"),
    [("always", [1, 1, 97], [1, 97]), ("once", [1, 97], [1, 97]), ("never", [1, 97], [97])],
)
def test_text_is_encoded_with_special_tokens_as_the_setting_says(special, rendered, raw):
    assert [vllm_adapter.encoded(Tokenizer(), text, special) for text in ("<s>a", "a")] == [rendered, raw]
