"""Special tokens of texts, and ids that the tokenizer does not know."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quirks_core.configuration.config import SamplingSection
from worker.engine import vllm_adapter
from worker.server.profile import SamplingProfile


class Tokenizer:
    """Adds BOS, 1, by default, and encodes each character as its code."""

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


@pytest.mark.parametrize(("skipped", "ids"), [(False, range(4, 6)), (True, range(6, 6))])
def test_unknown_ids_are_those_between_the_tokenizer_and_the_model(skipped, ids):
    config = SimpleNamespace(get_vocab_size=lambda: 6, skip_tokenizer_init=skipped)
    engine = SimpleNamespace(model_config=config, get_tokenizer=lambda: SimpleNamespace(max_token_id=3))

    assert vllm_adapter.unknown_ids(engine) == ids


def test_a_request_to_the_server_gets_the_bias_beside_its_own():
    profile = SamplingProfile(SamplingSection(), fixed=False, longest=10, bias=vllm_adapter.forbidding([4, 5]))
    names = ("temperature", "top_p", "top_k", "stop_token_ids", "stop", "max_tokens", "max_completion_tokens")
    request = SimpleNamespace(**dict.fromkeys(names), logit_bias={"3": 1.0}, model_fields_set=set())

    profile.complete(request)

    assert request.logit_bias == {"3": 1.0, "4": -100.0, "5": -100.0}
