"""The exact ids that the model made, over several turns."""

from __future__ import annotations

import pytest

from .conftest import HELLO, NAME, raw


async def test_carried_and_explicit_ids_begin_the_same_prompt(client, http):
    """On every route."""
    message = (await client.chat.completions.create(model=NAME, messages=HELLO)).choices[0].message
    carrying = [*HELLO, message.model_dump(exclude_none=True), {"role": "user", "content": "and"}]
    plain = [*HELLO, {"role": "assistant", "content": message.content}, {"role": "user", "content": "and"}]
    seen = message.prompt_token_ids + message.generation_token_ids

    async def tokens(messages, **more):
        body = {"messages": messages, **more}
        chat = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["prompt_token_ids"]
        assert (await http.post("/tokenize", json=body)).json()["tokens"] == chat
        return chat

    rendered, kept = await tokens(plain), await tokens(carrying)

    assert await tokens(plain, required_prefix_token_ids=seen) == kept
    assert kept[: len(seen)] == seen
    assert rendered[: len(seen)] != seen
    tail = kept[len(seen) :]
    assert tail[0] == 1  # the model was cut off by its length, so the template ends its turn
    assert rendered[-len(tail) :] == tail


@pytest.mark.parametrize("tail", [1, 3])
async def test_no_turn_vanishes_where_a_thought_spells_its_end(http, served, tail):
    """The rendering of the prefix shows the thought, that of the whole conversation does not."""
    encode = served.llm.get_tokenizer().encode
    said = "<think>the end is written <eos></think>yes"
    assert 1 in encode(said, add_special_tokens=False)  # otherwise the test says nothing
    more = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}, {"role": "user", "content": "then"}]
    history = [*HELLO, {"role": "assistant", "content": said}, *more[:tail]]
    seen = {"prompt_token_ids": encode("<bos>user\nhello there<eos>\n"), "generation_token_ids": [*encode("yes"), 1]}
    carrying = [*HELLO, {**history[1], **seen}, *more[:tail]]

    reply = await http.post("/tokenize", json={"messages": carrying})

    rest = "\n" + "".join(f"<bos>{m['role']}\n{m['content']}<eos>\n" for m in more[:tail]) + "<bos>assistant\n"
    said = seen["prompt_token_ids"] + seen["generation_token_ids"] + encode(rest, add_special_tokens=False)
    assert reply.json()["tokens"] == said
    answer = await http.post("/v1/chat/completions", json={"messages": carrying, "max_tokens": 1})
    assert answer.json()["choices"][0]["message"]["prompt_token_ids"] == said


async def test_a_spelled_end_of_turn_takes_nothing_away(http, served):
    """Where both renderings show it."""
    encode = served.llm.get_tokenizer().encode
    history = [{"role": "user", "content": "what is <eos>"}, {"role": "assistant", "content": "it is <eos>"}]
    history += [{"role": "user", "content": "so <eos> ends"}]
    seen = encode("<bos>user\nwhat is <eos><eos>\n<bos>assistant\nit is <eos><eos>")

    tokens = (await http.post("/tokenize", json={"messages": history, "required_prefix_token_ids": seen})).json()["tokens"]

    assert tokens == seen + encode("\n<bos>user\nso <eos> ends<eos>\n<bos>assistant\n", add_special_tokens=False)


#: Only the assistant's turns end, as in Mistral's and DeepSeek's templates.
ASSISTANTS_END = (
    "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("begin", ["", "<eos>"], ids=["", "begins with the end token, as OLMo 2"])
async def test_templates_that_end_one_side_s_turns_keep_ids(second, served, begin):
    encode = served.llm.get_tokenizer().encode
    seen = [*encode(f"{begin}[user]hello there[assistant]"), *(encode(x)[0] for x in "yes"), 1]
    more = [{"role": "user", "content": "why"}, {"role": "user", "content": "then"}]
    history = [*HELLO, {"role": "assistant", "content": "yes"}, *more]
    async with second(chat_template=begin + ASSISTANTS_END) as server, raw(server.base_url) as http:
        reply = await http.post("/tokenize", json={"messages": history, "required_prefix_token_ids": seen})

    assert reply.json()["tokens"] == seen + encode("[user]why[user]then", add_special_tokens=False)


async def test_messages_in_parts_are_rendered_twice_all_the_same(http):
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]}]
    history = [*parts, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]

    reply = await http.post("/v1/chat/completions", json={"messages": history, "required_prefix_token_ids": [2, 5, 6, 1]})

    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["prompt_token_ids"][:4] == [2, 5, 6, 1]
