"""What a reply carries, how it is sampled and how long it may be."""

from __future__ import annotations

import socket

import pytest

from quirks_core.configuration.config import GenerationConfig
from worker.server.errors import RequestError
from worker.server.profile import SamplingProfile

from .conftest import CHAT, HELLO, LONGEST, NAME, NEW_TOKENS, TEMPERATURE, raw


@pytest.fixture
def sampled_from(model, lab):
    """The logprobs of a message's ids under the checkpoint, with a temperature and a top-p."""

    def logprobs(prompt, generated, temperature=TEMPERATURE, top_p=1.0):
        import torch

        with torch.no_grad():
            logits = lab.trainer(model)(torch.tensor([prompt + generated]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        logits = logits.double() / temperature
        probabilities, order = logits.softmax(-1).sort(-1, descending=True)
        beyond = (probabilities.cumsum(-1) - probabilities >= top_p).gather(1, order.argsort(-1))
        kept = logits.masked_fill(beyond, float("-inf")).log_softmax(-1)
        return pytest.approx(kept.gather(1, torch.tensor(generated)[:, None])[:, 0].tolist(), abs=1e-3)

    return logprobs


async def test_a_message_carries_the_logprobs_of_its_ids(client, sampled_from):
    """Processed logprobs: those of softmax(logits / temperature), whatever generation_config.json recommends."""
    reply = await client.chat.completions.create(model=NAME, messages=HELLO)

    message = reply.choices[0].message
    assert len(message.generation_token_ids) == NEW_TOKENS
    assert message.generation_log_probs == sampled_from(message.prompt_token_ids, message.generation_token_ids)
    assert [span[1:] for span in message.weight_versions] == [[0, NEW_TOKENS]]  # the label is of another test
    assert reply.choices[0].logprobs is None  # not asked for
    assert reply.prompt_token_ids is None


@pytest.mark.parametrize("as_ids", [False, True])
async def test_openais_fields_say_the_same_as_vllms_own(client, as_ids):
    more = {"return_token_ids": True, "return_tokens_as_token_ids": as_ids}
    reply = await client.chat.completions.create(model=NAME, messages=HELLO, logprobs=True, top_logprobs=3, extra_body=more)

    choice, message = reply.choices[0], reply.choices[0].message
    assert reply.prompt_token_ids == message.prompt_token_ids
    assert choice.token_ids == message.generation_token_ids
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(message.generation_log_probs)
    assert all(len(entry.top_logprobs) == 3 for entry in choice.logprobs.content)
    ids = [f"token_id:{token}" for token in message.generation_token_ids]
    assert [entry.token == token for entry, token in zip(choice.logprobs.content, ids, strict=True)] == [as_ids] * len(ids)


async def test_the_last_delta_of_a_stream_carries_what_a_message_does(client):
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=NAME, messages=HELLO, stream=True, logprobs=True, extra_body={"return_token_ids": True}
        )
    ]

    last = chunks[-1].choices[0]
    assert last.finish_reason == "length"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    streamed = [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", None) or ()]
    assert last.delta.generation_token_ids == streamed
    assert last.delta.prompt_token_ids == chunks[0].prompt_token_ids
    logprobs = [entry.logprob for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert last.delta.generation_log_probs == pytest.approx(logprobs)


async def test_the_events_of_a_stream_are_sent_at_once(client, served):
    """Nagle's algorithm would hold them back until the client confirms the one before, 40 ms later."""
    async for _ in await client.chat.completions.create(model=NAME, messages=HELLO, stream=True):
        connections = [connection.transport for connection in served.server._uvicorn.server_state.connections]

    sockets = [transport.get_extra_info("socket") for transport in connections]
    assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets)


async def test_every_choice_carries_its_own(client):
    """The request has what means the rollout's own sampling."""
    own = {"top_k": 0, "min_p": 0, "repetition_penalty": 1.0}

    reply = await client.chat.completions.create(
        model=NAME, messages=HELLO, n=3, temperature=TEMPERATURE, top_p=1, presence_penalty=0, extra_body=own
    )

    made = [choice.message for choice in reply.choices]
    assert all(len(message.generation_log_probs) == NEW_TOKENS for message in made)
    assert len({tuple(message.generation_token_ids) for message in made}) == 3


async def test_with_a_tool_parser_messages_carry_the_same(second):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    async with second(tool_parser="hermes") as server, raw(server.base_url) as http:
        reply = await http.post("/v1/chat/completions", json={**CHAT, "tools": tools})

    assert reply.status_code == 200
    assert len(reply.json()["choices"][0]["message"]["generation_token_ids"]) == NEW_TOKENS


async def test_return_token_ids_overrides_the_default_of_the_purpose(client, second):
    without = await client.chat.completions.create(model=NAME, messages=HELLO, extra_body={"return_token_ids": False})
    async with second(purpose="serve") as server, raw(server.base_url) as http:
        plain = (await http.post("/v1/chat/completions", json=CHAT)).json()
        asked = (await http.post("/v1/chat/completions", json={**CHAT, "return_token_ids": True})).json()

    assert not hasattr(without.choices[0].message, "generation_token_ids")
    assert "generation_token_ids" not in plain["choices"][0]["message"]
    assert asked["choices"][0]["message"]["generation_token_ids"] == asked["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"temperature": 1.0}, "temperature = 1 is not the rollout's temperature = 0.7"),
        ({"top_k": 5}, "top_k = 5 is not the rollout's top_k = -1"),
        ({"logit_bias": {"5": 3}}, "logit_bias is not the rollout's"),
        ({"min_tokens": 4}, "min_tokens = 4 is not the rollout's sampling.min_new_tokens = 0: it masks the tokens that end"),
        ({"thinking_token_budget": 0}, "thinking_token_budget is not the rollout's"),
    ],
)
async def test_a_rollout_that_refuses_another_distribution_names_both(http, field, words):
    reply = await http.post("/v1/chat/completions", json={**CHAT, **field})

    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == next(iter(field))


async def test_a_rollout_takes_the_validation_profile_only_as_a_whole(second, sampled_from):
    """The logprobs are the validation's: those of the profile that the tokens were sampled with."""
    async with second(validation_temperature=0.5, validation_top_p=0.9) as server, raw(server.base_url) as http:

        async def ask(**fields):
            return await http.post("/v1/chat/completions", json={**CHAT, **fields})

        whole = await ask(temperature=0.5, top_p=0.9)
        others = [await ask(temperature=0.5), await ask(temperature=TEMPERATURE), await ask()]
        mixed = await ask(temperature=TEMPERATURE, top_p=0.9)
        biased = await ask(temperature=0.5, top_p=0.9, logit_bias={"5": 3})
    async with second() as server, raw(server.base_url) as http:
        without = await http.post("/v1/chat/completions", json={**CHAT, "temperature": 0.5})

    assert [reply.status_code for reply in (whole, *others)] == [200] * 4
    assert [reply.status_code for reply in (mixed, biased, without)] == [400] * 3
    assert mixed.json()["error"]["param"] == "top_p"
    assert "for validation send temperature = 0.5 and top_p = 0.9" in mixed.json()["error"]["message"]
    for reply, profile in zip((whole, *others), ((0.5, 0.9), (0.5, 0.9), (0.7, 1.0), (0.7, 1.0)), strict=True):
        message = reply.json()["choices"][0]["message"]
        expected = sampled_from(message["prompt_token_ids"], message["generation_token_ids"], *profile)
        assert message["generation_log_probs"] == expected


async def test_outside_a_rollout_a_request_says_how_it_is_sampled(second):
    body = {**CHAT, "temperature": 0, "top_k": 3, "max_tokens": 12}
    async with second(purpose="serve") as server, raw(server.base_url) as http:
        replies = [(await http.post("/v1/chat/completions", json=body)).json() for _ in range(2)]

    assert replies[0]["choices"][0]["message"]["content"] == replies[1]["choices"][0]["message"]["content"]
    assert replies[0]["usage"]["completion_tokens"] == 12


async def test_the_configured_least_length_holds_where_there_is_room(second):
    async with second(sampling={"min_new_tokens": 4}, rl_routes=True) as server, raw(server.base_url) as http:
        whole = (await http.post("/v1/chat/completions", json=CHAT)).json()
        # Where there is room for two tokens only, two are enough.
        full = [{"role": "user", "content": "x " * ((LONGEST - 40) // 2)}]
        length = (await http.post("/tokenize", json={"messages": full})).json()["count"]
        full[0]["content"] += "x" * (LONGEST - 2 - length)
        short = (await http.post("/v1/chat/completions", json={"messages": full})).json()
        text = (await http.post("/v1/completions", json={"prompt": [5] * (LONGEST - 2)})).json()

    assert whole["usage"]["completion_tokens"] == NEW_TOKENS
    for reply in (short, text):
        assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (LONGEST - 2, 2)


@pytest.mark.usefixtures("served")  # it has imported vLLM
def test_a_prompt_with_little_room_shortens_no_other_prompts_reply():
    from worker.server.serving import TextRequest

    request = TextRequest(prompt=[[5] * 8, [5]], min_tokens=40)

    assert [request.to_sampling_params(room, {}).min_tokens for room in (2, 64)] == [2, 40]


async def test_a_prompt_that_fills_the_context_is_a_400(http):
    too_long = [{"role": "user", "content": "x " * LONGEST}]
    ids = {"required_prefix_token_ids": [5] * LONGEST, "messages": [*HELLO, {"role": "assistant", "content": "x"}]}

    for body in ({"messages": too_long}, ids):
        reply = await http.post("/v1/chat/completions", json={**body, "stream": True})

        assert reply.status_code == 400
        assert str(LONGEST) in reply.json()["error"]["message"]


async def test_a_reply_is_cut_to_the_room_that_is_left(http):
    body = {"messages": [{"role": "user", "content": "x " * 90}]}
    length = (await http.post("/tokenize", json=body)).json()["count"]

    reply = (await http.post("/v1/chat/completions", json={**body, "max_tokens": LONGEST})).json()

    assert reply["usage"]["completion_tokens"] == LONGEST - length
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_default_of_vllms_requests_is_no_other_distribution():
    """A watermark of the engine's is on in each request of vLLM 0.30 and 0.31, whether the engine has one or not."""
    from worker.server.serving import ChatRequest

    class OfEarlierVllm(ChatRequest):
        watermarking: bool = True

    profile = SamplingProfile(GenerationConfig.parse({"model": "m"}))

    profile.complete(OfEarlierVllm(messages=HELLO))
    with pytest.raises(RequestError, match="watermarking is not the rollout's"):
        profile.complete(OfEarlierVllm(messages=HELLO, watermarking=True))
