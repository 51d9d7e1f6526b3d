"""The contract of a trainer and a plain ``vllm serve`` under the hook."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from worker.refit import Contract, agree

#: What the server below has; its requests set the rest.
AGREED = {"dtype": "bfloat16", "head_dtype": "bfloat16", "logprobs": "processed_logprobs", "scope": "parameters"}


def test_a_plain_server_answers_with_its_side_of_the_contract(programs, checkpoint, vllm, port):
    options = ["--dtype", "bfloat16", "--enforce-eager", *programs.small]
    variables = {"MODEL_QUIRKS": "rollout", "VLLM_SERVER_DEV_MODE": "1"}
    variables["MODEL_QUIRKS_SET"] = "refit.scope=parameters;sampling.temperature=0.7"
    with programs.server(vllm, "serve", checkpoint("qwen3"), *options, port=port, **variables) as server:
        mine = Contract(**AGREED, temperature=0.7, top_p=1, adapters=False)
        theirs = agree(server.url, mine)

        assert AGREED.items() <= theirs.known.items()
        assert (theirs.temperature, theirs.top_p, theirs.adapters) == (0.7, None, False)
        assert theirs.versions == mine.versions
        assert (len(theirs.plan), agree(server.url, theirs).digest) == (64, theirs.digest)
        for changes, words in (
            ({"dtype": "float16"}, "dtype: the trainer has float16, the engine bfloat16"),
            ({"temperature": 1.0, "top_p": 0.9}, "temperature: the trainer has 1.0, the engine 0.7"),
            ({"adapters": True}, "adapters: the trainer has True, the engine False"),
            ({"scope": "state_dict"}, "scope: the trainer has state_dict, the engine parameters"),
            ({"plan": "0" * 64}, f"plan: the trainer has {'0' * 64}, the engine {theirs.plan}"),
            ({"versions": {"torch": "2.0"}}, "torch: the trainer has 2.0, the engine "),
        ):
            with pytest.raises(UsageError, match=f"differ before the first rollout: {words}"):
                agree(server.url, Contract(**AGREED | {"temperature": 0.7} | changes))
        agree(server.url, Contract(**AGREED, temperature=1.0), requests={"temperature": 1.0})
