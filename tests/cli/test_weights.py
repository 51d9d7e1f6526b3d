"""``quirks weights`` without a server: what is refused."""

from __future__ import annotations

import pytest
from installed import needs_vllm


@needs_vllm
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
        ([], "nothing answers at http://localhost:8000"),
        (["4194304999"], "is no process on this machine"),
        (["1", "--checkpoint", "here"], "--checkpoint needs the server's address"),
        (["ftp://host"], "name one as http://host:8000"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(quirks, arguments, words):
    outcome = quirks("weights", *arguments)

    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())
