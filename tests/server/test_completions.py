from server.byte_tokenizer import END
from server.fake_client import fixed_reply
from server.live import in_loop, live

PATH = "/v1/completions"


@in_loop
async def test_the_whole_answer() -> None:
    async with live(fixed_reply("hello")) as server:
        answer = (await server.post(PATH, {"prompt": "abc", "model": "fake-model"})).json()
        assert answer.pop("id").startswith("cmpl-")
        assert isinstance(answer.pop("created"), int)
        assert answer == {
            "object": "text_completion",
            "model": "fake-model",
            "choices": [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 6,
                "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


@in_loop
async def test_the_stream() -> None:
    async with live(fixed_reply("hé")) as server:
        chunks = await server.chunks(PATH, {"prompt": "abc", "stream_options": {"include_usage": True}})
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert [chunk["choices"] for chunk in chunks] == [
            [{"index": 0, "text": "h", "logprobs": None, "finish_reason": None}],
            [{"index": 0, "text": "é", "logprobs": None, "finish_reason": None}],  # two tokens, one character
            [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}],
            [],
        ]
        usages = [chunk["usage"] for chunk in chunks]
        assert usages == [
            None,
            None,
            None,
            {
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        ]


@in_loop
async def test_the_usage_so_far_comes_with_every_chunk_on_request() -> None:
    async with live(fixed_reply("hé")) as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await server.chunks(PATH, {"prompt": "abc", "stream_options": options})
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 3, 4, 4]
        chunks = await server.chunks(PATH, {"prompt": "abc", "stream_options": {"continuous_usage_stats": True}})
        assert all("usage" not in chunk for chunk in chunks)  # as in vLLM


@in_loop
async def test_usage_comes_in_a_stream_only_on_request() -> None:
    async with live() as server:
        for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
            chunks = await server.chunks(PATH, {"prompt": "abc", "stream_options": options})
            assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@in_loop
async def test_stream_and_whole_are_twins() -> None:
    async with live() as server:
        body = {"prompt": ["one", "two", [116, 104, 114, 101, 101]], "n": 3, "seed": 7, "temperature": 0.8}
        whole = (await server.post(PATH, body)).json()["choices"]
        streamed = [""] * 9
        ended = [None] * 9
        for chunk in await server.chunks(PATH, body):
            (choice,) = chunk["choices"]
            assert ended[choice["index"]] is None
            streamed[choice["index"]] += choice["text"]
            ended[choice["index"]] = choice["finish_reason"]
        assert [choice["index"] for choice in whole] == list(range(9))
        assert streamed == [choice["text"] for choice in whole]
        assert ended == [choice["finish_reason"] for choice in whole]
        assert len(set(streamed)) == 9
        alone = (await server.post(PATH, {**body, "prompt": "two"})).json()["choices"]
        assert [choice["text"] for choice in alone] == streamed[3:6]  # all choices of a prompt lie together


@in_loop
async def test_the_openai_client_reads_all_of_it() -> None:
    async with live(fixed_reply("hello")) as server:
        whole = await server.openai.completions.create(
            model="fake-model", prompt="abc", logprobs=2, max_tokens=3, logit_bias={"5": 1}, stop=["zzz"]
        )
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("hel", "length")
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens == ["h", "e", "l"]
        assert logprobs.token_logprobs == [-0.5] * 3
        assert logprobs.text_offset == [0, 1, 2]
        assert logprobs.top_logprobs is not None
        assert logprobs.top_logprobs[0] == {"h": -0.5, "i": -9999.0}  # JSON has no infinity
        stream = await server.openai.completions.create(
            model="fake-model", prompt="abc", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "hello"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 6
        assert server.client.requests[0].sampling.logit_bias == ((5, 1.0),)


@in_loop
async def test_logprobs_of_a_stream_are_the_whole_ones_in_pieces() -> None:
    async with live(fixed_reply("a€b")) as server:
        body = {"prompt": "x", "logprobs": 1}
        whole = (await server.post(PATH, body)).json()["choices"][0]["logprobs"]
        assert whole["tokens"] == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b", "<|end|>"]
        assert whole["text_offset"] == [0, 1, 1, 1, 2, 3]
        pieces = [chunk["choices"][0]["logprobs"] for chunk in await server.chunks(PATH, body)]
        for name in whole:
            assert [item for piece in pieces for item in piece[name]] == whole[name]


@in_loop
async def test_logprobs_zero_still_gives_the_sampled_token() -> None:
    async with live(fixed_reply("a")) as server:
        answer = (await server.post(PATH, {"prompt": "x", "logprobs": 0, "max_tokens": 1})).json()
        assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]


@in_loop
async def test_every_field_reaches_the_engine() -> None:
    fields = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "seed": 11,
        "max_tokens": 7,
        "min_tokens": 2,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    async with live() as server:
        response = await server.post(
            PATH, {"prompt": [1, 2, 3], "priority": -4, "stop": "xx", "stop_token_ids": [9], **fields}
        )
        assert response.status_code == 200
        (request,) = server.client.requests
        assert request.prompt_token_ids == (1, 2, 3)
        assert request.priority == -4
        assert request.eos_token_ids == (END,)
        assert (request.sampling.stop, request.sampling.stop_token_ids) == (("xx",), (9,))
        for name, value in fields.items():
            assert getattr(request.sampling, name) == value


@in_loop
async def test_null_and_absent_are_the_same() -> None:
    async with live() as server:
        names = [
            *("model", "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
            *("logit_bias", "max_tokens", "stop", "stream", "stream_options", "logprobs", "user", "priority"),
            *("tools", "echo", "suffix", "best_of"),
        ]
        nulls = dict.fromkeys(names)
        assert (await server.post(PATH, {"prompt": "x", "seed": 1, **nulls})).status_code == 200
        assert (await server.post(PATH, {"prompt": "x", "seed": 1})).status_code == 200
        first, second = (request.sampling for request in server.client.requests)
        assert first == second
        assert first.max_tokens is None
        assert first.temperature == 1.0


@in_loop
async def test_a_request_without_a_seed_gets_one_of_its_own() -> None:
    async with live() as server:
        await server.post(PATH, {"prompt": ["x", "x"]})
        await server.post(PATH, {"prompt": "x", "seed": 0})
        seeds = [request.sampling.seed for request in server.client.requests]
        assert None not in seeds
        assert seeds[0] != seeds[1]
        assert seeds[2] == 0


@in_loop
async def test_internal_ids_are_unique_and_the_callers_id_comes_back() -> None:
    async with live() as server:
        for _ in range(2):
            response = await server.post(PATH, {"prompt": ["x", "y"]}, headers={"X-Request-Id": "mine-1"})
            assert response.headers["x-request-id"] == "mine-1"
        response = await server.post(PATH, {"prompt": "x"}, headers={"X-Request-Id": "not plain"})
        assert response.headers["x-request-id"] != "not plain"
        ids = [request.request_id for request in server.client.requests]
        assert len(set(ids)) == 5
        assert "mine-1" not in ids


@in_loop
async def test_one_refused_prompt_refuses_the_call() -> None:
    async with live() as server:
        server.client.admits.clear()
        response = await server.post(PATH, {"prompt": ["x", "y" * 511], "max_tokens": 5})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert not server.client.waiting
        assert server.client.num_closed_early == 1
