from server.fake_client import fixed_reply
from server.live import in_loop, live

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@in_loop
async def test_the_whole_answer() -> None:
    async with live(fixed_reply("hello")) as server:
        answer = (await server.post(PATH, {"messages": HI})).json()
        assert answer.pop("id").startswith("chatcmpl-")
        assert isinstance(answer.pop("created"), int)
        assert answer == {
            "object": "chat.completion",
            "model": "fake-model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hello", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 20,
                "completion_tokens": 6,
                "total_tokens": 26,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }
        assert bytes(server.client.requests[0].prompt_token_ids) == b"user: hi\nassistant: "


@in_loop
async def test_the_stream() -> None:
    async with live(fixed_reply("ok")) as server:
        chunks = await server.chunks(PATH, {"messages": HI, "stream_options": {"include_usage": True}})
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        *with_choice, last = chunks
        choices = [choice for chunk in with_choice for choice in chunk["choices"]]
        assert [choice["delta"] for choice in choices] == [
            {"role": "assistant", "content": ""},
            {"content": "o"},
            {"content": "k"},
            {},
        ]
        assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
        assert all(chunk["usage"] is None for chunk in with_choice)
        assert last["choices"] == []
        assert last["usage"] == {
            "prompt_tokens": 20,
            "completion_tokens": 3,
            "total_tokens": 23,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


@in_loop
async def test_the_openai_client_reads_all_of_it() -> None:
    async with live() as server:
        arguments = {"model": "fake-model", "messages": HI, "n": 2, "seed": 3, "logprobs": True, "top_logprobs": 3}
        whole = await server.openai.chat.completions.create(**arguments)
        texts, tokens = ["", ""], [[], []]
        async for chunk in await server.openai.chat.completions.create(**arguments, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                tokens[choice.index] += choice.logprobs.content if choice.logprobs else []
        assert texts == [choice.message.content for choice in whole.choices]
        assert texts[0] != texts[1]
        assert [[token.token for token in choice] for choice in tokens] == [
            [token.token for token in choice.logprobs.content] for choice in whole.choices
        ]
        first = whole.choices[0].logprobs.content[0]
        assert first.bytes == list(first.token.encode())
        assert [top.logprob for top in first.top_logprobs] == [-0.5, -9999.0, -3.0]
        assert first.top_logprobs[2].bytes == [0xFF]
        assert first.top_logprobs[2].token == "bytes:\\xff"


@in_loop
async def test_logprobs_without_alternatives() -> None:
    async with live(fixed_reply("a")) as server:
        answer = (await server.post(PATH, {"messages": HI, "logprobs": True, "max_tokens": 1})).json()
        assert answer["choices"][0]["logprobs"] == {
            "content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}],
            "refusal": None,
        }


@in_loop
async def test_roles_and_content_parts() -> None:
    async with live() as server:
        messages = [
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
            {"role": "assistant", "content": None},
            {"role": "user", "content": ""},
        ]
        body = {"messages": messages, "add_generation_prompt": False}
        assert (await server.post(PATH, body)).status_code == 200
        assert (
            bytes(server.client.requests[0].prompt_token_ids) == b"system: be kind\nuser: a\nb\nassistant: \nuser: \n"
        )


@in_loop
async def test_max_completion_tokens_is_the_newer_name() -> None:
    async with live() as server:
        for limits, expected in (
            ({"max_completion_tokens": 3}, 3),
            ({"max_tokens": 5}, 5),
            ({"max_tokens": 5, "max_completion_tokens": 3}, 3),
            ({"max_tokens": None, "max_completion_tokens": None}, None),
            ({}, None),
        ):
            assert (await server.post(PATH, {"messages": HI, **limits})).status_code == 200
            assert server.client.requests[-1].sampling.max_tokens == expected


@in_loop
async def test_stop_strings_end_the_text_and_the_usage() -> None:
    async with live(fixed_reply("one two three")) as server:
        body = {"messages": HI, "stop": ["two"]}
        answer = (await server.post(PATH, body)).json()
        assert answer["choices"][0]["message"]["content"] == "one "
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == 7
        chunks = await server.chunks(PATH, body)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "one "
