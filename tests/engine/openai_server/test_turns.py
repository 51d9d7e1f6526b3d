"""The exact ids that the model made, over several turns."""

from __future__ import annotations

NAME = "tiny"
HELLO = [{"role": "user", "content": "hello there"}]


async def test_each_turns_prompt_extends_the_turn_before_through_the_official_client(client, served):
    messages, seen, retokenised = list(HELLO), [], False
    for turn in range(5):
        message = (await client.chat.completions.create(model=NAME, messages=messages)).choices[0].message

        assert message.prompt_token_ids[: len(seen)] == seen
        seen = message.prompt_token_ids + message.generation_token_ids
        again = served.llm.get_tokenizer().encode(message.content, add_special_tokens=False)
        retokenised |= again != message.generation_token_ids
        messages += [message.model_dump(exclude_none=True), {"role": "user", "content": f"go on {turn}"}]

    assert retokenised  # otherwise the test says nothing
    assert len(messages) == 11


async def test_without_the_ids_the_template_would_render_others(client, http):
    message = (await client.chat.completions.create(model=NAME, messages=HELLO)).choices[0].message
    history = [*HELLO, {"role": "assistant", "content": message.content}, {"role": "user", "content": "and"}]
    seen = message.prompt_token_ids + message.generation_token_ids

    rendered = (await http.post("/tokenize", json={"messages": history})).json()
    kept = (await http.post("/tokenize", json={"messages": history, "required_prefix_token_ids": seen})).json()

    assert rendered["tokens"][: len(seen)] != seen
    assert kept["tokens"][: len(seen)] == seen
    assert kept["count"] == len(kept["tokens"])
    tail = kept["tokens"][len(seen) :]
    assert tail[0] == 1  # the model was cut off by its length, so the template ends its turn
    assert rendered["tokens"][-len(tail) :] == tail


async def test_an_explicit_prefix_and_carried_ids_make_the_same_prompt_in_chat_and_tokenize(client, http):
    message = (await client.chat.completions.create(model=NAME, messages=HELLO)).choices[0].message
    carrying = [*HELLO, message.model_dump(exclude_none=True), {"role": "user", "content": "and"}]
    plain = [*HELLO, {"role": "assistant", "content": message.content}, {"role": "user", "content": "and"}]
    explicit = {"required_prefix_token_ids": message.prompt_token_ids + message.generation_token_ids}

    prompts = [
        (await client.chat.completions.create(model=NAME, messages=carrying)).choices[0].message.prompt_token_ids,
        (await client.chat.completions.create(model=NAME, messages=plain, extra_body=explicit))
        .choices[0]
        .message.prompt_token_ids,
        (await http.post("/tokenize", json={"messages": carrying})).json()["tokens"],
        (await http.post("/tokenize", json={"messages": plain, **explicit})).json()["tokens"],
    ]

    assert all(prompt == prompts[0] for prompt in prompts)


async def test_ids_stay_where_the_template_strips_the_reasoning_from_history(http, served):
    encode = served.llm.get_tokenizer().encode
    thought = {"role": "assistant", "content": "<think>a very long thought about it</think>yes"}
    history = [*HELLO, thought, {"role": "user", "content": "why"}]
    # " yes" in pieces that the tokenizer would not choose, and the end of the turn that the model chose itself.
    seen = [*encode("<bos>user\nhello there<eos>\n<bos>assistant\n<think>hm</think>"), *(encode(x)[0] for x in "yes"), 1]

    tokens = (await http.post("/tokenize", json={"messages": history, "required_prefix_token_ids": seen})).json()["tokens"]

    assert tokens == seen + encode("\n<bos>user\nwhy<eos>\n<bos>assistant\n", add_special_tokens=False)


async def test_messages_in_parts_are_rendered_twice_all_the_same(http):
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]}]
    history = [*parts, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]

    reply = await http.post("/v1/chat/completions", json={"messages": history, "required_prefix_token_ids": [2, 5, 6, 1]})

    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["prompt_token_ids"][:4] == [2, 5, 6, 1]


async def test_a_template_that_ends_no_turn_is_a_clear_400(second, raw):
    body = {"messages": HELLO, "required_prefix_token_ids": [5, 6, 7]}
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    async with second(chat_template=template) as server, raw(server.base_url) as http:
        replies = [await http.post(path, json=body) for path in ("/v1/chat/completions", "/tokenize")]

    for reply in replies:
        assert reply.status_code == 400
        assert "ends no turn of the required prefix with an end-of-turn token (id 1)" in reply.json()["error"]["message"]
