from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason, SampledToken, SchedulerStats
from inflight.core.request import MAX_SEED, Request, SamplingParams
from inflight.engine.events import ChoiceDelta, EngineInfo
from inflight.engine.wire import (
    Abort,
    Add,
    Failed,
    Heartbeat,
    Ready,
    Refused,
    Step,
    Stop,
    decode_from_engine,
    decode_to_engine,
    encode,
    encode_add,
    read_request,
)
from inflight.metrics.delta import FirstToken, MetricsDelta, Outcome, RequestRecord

token_ids = st.integers(0, 2**31)
texts = st.text(st.characters(exclude_categories=["Cs"]))
finite = st.floats(allow_nan=False, allow_infinity=False)
sampling_params = st.builds(
    SamplingParams,
    n=st.integers(1, 128),
    temperature=st.one_of(st.floats(0, 100), st.integers(0, 100)),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(-1, 1000),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 100, exclude_min=True),
    logit_bias=st.dictionaries(token_ids, st.one_of(st.floats(-100, 100), st.integers(-100, 100)), max_size=5),
    seed=st.one_of(st.none(), st.integers(-(2**63), MAX_SEED)),
    logprobs=st.one_of(st.none(), st.integers(0, 20)),
    max_tokens=st.one_of(st.none(), st.integers(5, 2**31)),
    min_tokens=st.integers(0, 5),
    stop=st.lists(texts.filter(bool), max_size=4),
    include_stop_str_in_output=st.booleans(),
    stop_token_ids=st.lists(token_ids, max_size=4),
    ignore_eos=st.booleans(),
    skip_special_tokens=st.booleans(),
)
requests = st.builds(
    Request,
    request_id=texts,
    prompt_token_ids=st.lists(token_ids, min_size=1),
    sampling=sampling_params,
    eos_token_ids=st.lists(token_ids).map(tuple),
    priority=st.integers(-(2**31), 2**31 - 1),
    arrival_s=finite,
    cache_salt=texts,
)
sampled_tokens = st.builds(
    SampledToken,
    token_ids,
    st.one_of(st.none(), finite),
    st.lists(st.tuples(token_ids, finite), max_size=3).map(tuple),
)
deltas = st.builds(
    ChoiceDelta,
    st.tuples(texts, st.integers(0, 127)),
    texts,
    st.lists(sampled_tokens, max_size=3).map(tuple),
    st.one_of(st.none(), st.sampled_from(FinishReason)),
    st.one_of(st.none(), token_ids, texts),
    st.one_of(st.none(), texts),
    st.integers(0, 2**31),
)
METRICS = MetricsDelta(
    batch_rows=(1, 2),
    first_tokens=(FirstToken("a", 0.5, 0.25, 2.0),),
    rejected=(Reason.QUEUE_FULL,),
    ended=(RequestRecord("a", Outcome.STOP, 1, 3, 5, 0, 0, 0.5, 0.75, 2.0, (0.1,), None, num_cached_tokens=2),),
    num_swapped_out=1,
    copies_s=0.25,
)
STATS = SchedulerStats(*range(len(fields(SchedulerStats))))
INFO = EngineInfo("m", 1, "f32", "cpu", 2, 10, "continuous", 64, 4, 8, 16, 16, 128, ("a line", "another"))


def there_and_back(request: Request) -> Request:
    add = decode_to_engine(encode_add(request))
    assert isinstance(add, Add)
    assert add.request_id == request.request_id
    return read_request(add)


@given(requests)
def test_a_request_arrives_as_it_was(request: Request) -> None:
    arrived = there_and_back(request)
    assert arrived == request
    assert hash(arrived) == hash(request)  # tuples stayed tuples, all the way down


@given(st.lists(deltas).map(tuple))
def test_a_step_arrives_as_it_was(given_deltas: tuple[ChoiceDelta, ...]) -> None:
    step = Step(given_deltas, ("x", "y"), METRICS, STATS)
    arrived = decode_from_engine(encode(step))
    assert arrived == step
    assert hash(arrived) == hash(step)
    assert all(type(delta) is ChoiceDelta for delta in arrived.deltas)


@pytest.mark.parametrize(
    "message",
    [Ready(INFO), Failed("why"), Refused("a", Reason.CONTEXT_LENGTH, "long", "prompt", None), Heartbeat()],
)
def test_messages_of_the_engine_arrive(message) -> None:
    assert decode_from_engine(encode(message)) == message


@pytest.mark.parametrize("message", [Abort("a"), Stop()])
def test_messages_to_the_engine_arrive(message) -> None:
    assert decode_to_engine(encode(message)) == message


@pytest.mark.parametrize("message", [Stop(), Abort("a")])
def test_a_message_is_not_read_in_the_wrong_direction(message) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_from_engine(encode(message))


SIMPLE = Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams())


@pytest.mark.parametrize(
    "request_",
    [
        replace(SIMPLE, request_id="\ud800"),
        replace(SIMPLE, prompt_token_ids=(2**70,)),
        replace(SIMPLE, sampling=SamplingParams(stop=("\udfff",))),
        replace(SIMPLE, eos_token_ids=(object(),)),
    ],
)
def test_what_cannot_be_sent_is_refused(request_: Request) -> None:
    with pytest.raises(Rejected) as no:
        encode_add(request_)
    assert no.value.reason is Reason.INVALID


@pytest.mark.parametrize(
    "build",
    [
        lambda: replace(SIMPLE, prompt_token_ids=("1",)),
        lambda: replace(SIMPLE, prompt_token_ids=(1.5,)),
        lambda: replace(SIMPLE, arrival_s="now"),
        lambda: replace(SIMPLE, sampling=SamplingParams(max_tokens=1.5)),
        lambda: replace(SIMPLE, sampling=SamplingParams(ignore_eos="yes")),
    ],
)
def test_what_cannot_be_read_is_refused(build: Callable[[], Request]) -> None:
    """When it is made, or else when it is read."""
    with pytest.raises(Rejected) as no:
        there_and_back(build())
    assert no.value.reason is Reason.INVALID


def test_an_illegal_value_is_refused_by_the_reader_too() -> None:
    plain = msgspec.to_builtins(SIMPLE)
    plain["sampling"]["temperature"] = math.nan
    add = Add("a", msgspec.Raw(msgspec.msgpack.encode(plain)))
    with pytest.raises(Rejected, match="temperature"):
        read_request(add)
