"""What a caller may ask for, and what is refused before it reaches a scheduler."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inflight.core.errors import Reason, Rejected
from inflight.core.request import Request, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 10**400),  # too large for a float: compared as the integer it is
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", -0.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("logit_bias", {3: 101.0}),
        ("seed", 2**64),
        ("logprobs", 21),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("min_tokens", 17),  # above max_tokens, which is 16
        ("stop", ""),
        ("stop", ["x"] * 65),
        ("stop", "x" * 1025),
        ("stop", [b"ab"]),
        ("n", 1.5),
        ("n", True),
        ("seed", 1.5),
        ("max_tokens", "4"),
        ("temperature", "hot"),
        ("stop_token_ids", "ab"),
        ("stop_token_ids", [1.5]),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: "a"}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(Rejected) as caught:
        SamplingParams(**{field: value})
    assert (caught.value.reason, caught.value.param) == (Reason.INVALID, field)


def test_lists_and_mappings_are_frozen():
    params = SamplingParams(stop="one", stop_token_ids=[2, 1], logit_bias={5: 1.0, 3: -1.0}, top_k=-1)
    assert params.stop == ("one",)
    assert params.stop_token_ids == (2, 1)
    assert params.logit_bias == ((3, -1.0), (5, 1.0))
    assert params.top_k == 0
    assert hash(params) == hash(SamplingParams(stop=["one"], stop_token_ids=(2, 1), logit_bias=[(5, 1.0), (3, -1.0)]))


def test_an_empty_prompt_and_a_token_outside_of_the_vocabulary_are_refused():
    with pytest.raises(Rejected, match="empty"):
        Request(request_id="one", prompt_token_ids=(), sampling=SamplingParams())
    with pytest.raises(Rejected, match="priority"):
        Request(request_id="one", prompt_token_ids=(1,), sampling=SamplingParams(), priority=2**31)
    for prompt, options in (
        ((1, 10), {}),
        ((-1,), {}),
        ((1,), {"stop_token_ids": [10]}),
        ((1,), {"logit_bias": {10: 1}}),
    ):
        request = Request(request_id="one", prompt_token_ids=prompt, sampling=SamplingParams(**options))
        with pytest.raises(Rejected, match=r"vocabulary is \[0, 10\)"):
            request.check_token_ids(10)


def test_numpy_numbers_become_plain_ones():
    params = SamplingParams(
        seed=np.int64(3), temperature=np.float32(0.5), stop_token_ids=np.array([1, 2]), n=np.int8(2)
    )
    request = Request(request_id="one", prompt_token_ids=np.array([4, 5]), sampling=params)
    for value in (params.seed, params.n, *params.stop_token_ids, *request.prompt_token_ids):
        assert type(value) is int
    assert type(params.temperature) is float
    with pytest.raises(Rejected, match="whole numbers"):
        Request(request_id="one", prompt_token_ids=[1.5], sampling=params)
