"""The workload that the flags describe: made the same way each time, and nothing of it that the model cannot take."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.config import add_flags, from_args
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig

VOCAB_SIZE, MAX_MODEL_LEN = 1000, 128


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    lines = [{"arrival_s": at * at, "num_prompt_tokens": 40 * (at + 1), "max_tokens": 8} for at in range(5)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": letter * 30}) for letter in "abc"))
    return file


def build(**values: Any) -> Any:
    return build_workload(WorkloadConfig(**values), VOCAB_SIZE, MAX_MODEL_LEN, encode)


def lengths(workload: Any) -> list[tuple[int, int]]:
    return [(len(item.prompt_token_ids), item.max_tokens) for item in workload.items]


@given(
    num_requests=st.integers(1, 30),
    prompt_tokens=st.sampled_from(["5", "uniform:1,300", "lognormal:20,90,1,500"]),
    scale=st.floats(0.1, 3),
    rate=st.none() | st.floats(0.1, 100) | st.just(math.inf),
    seed=st.integers(),
)
def test_what_is_drawn_fits_is_sorted_and_is_the_same_again(
    num_requests: int, prompt_tokens: str, scale: float, rate: float | None, seed: int
) -> None:
    values = {
        "num_requests": num_requests,
        "prompt_tokens": prompt_tokens,
        "output_tokens": "0.5x3+0.5x90",
        "length_scale": scale,
        "request_rate": rate,
        "seed": seed,
    }
    workload = build(**values)
    assert len(workload.items) == num_requests
    assert all(min(pair) >= 1 and sum(pair) <= MAX_MODEL_LEN for pair in lengths(workload))
    arrivals = [item.arrival_s for item in workload.items]
    assert arrivals == sorted(arrivals)
    assert set(arrivals) == {0.0} or rate not in (None, math.inf)
    assert workload == build(**values)


def test_prompt_and_output_lengths_are_drawn_independently() -> None:
    drawn = lengths(build(num_requests=40, prompt_tokens="uniform:1,50", output_tokens="uniform:1,50"))
    assert [prompt for prompt, _ in drawn] != [output for _, output in drawn]


def test_a_trace_is_replayed_scaled_and_clipped_and_the_notes_say_so(trace: Path) -> None:
    workload = build(trace=trace)
    assert lengths(workload) == [(40, 8), (80, 8), (120, 8), (120, 8), (120, 8)]
    assert [item.arrival_s for item in workload.items] == [0, 1, 4, 9, 16]
    assert "2 of 5 shortened to 128 tokens" in workload.notes[0]
    workload = build(trace=trace, num_requests=3, length_scale=0.5, request_rate=2)
    assert lengths(workload) == [(20, 4), (40, 4), (60, 4)]
    assert [item.arrival_s for item in workload.items] == [0, 0.25, 1]
    assert workload.notes == (
        "3 requests, 1.0 s, 2 requests/s; prompt tokens p50 40 p99 60; output tokens p50 4 p99 4; "
        "the first of trace.jsonl (jsonl); lengths x 0.5; gaps x 0.25",
        "prompts: random token ids, seed 0",
    )


def test_prompts_are_requests_as_they_are_or_text_to_cut_from(prompts: Path, trace: Path) -> None:
    whole = build(prompts=prompts, output_tokens="7")
    assert [item.prompt_token_ids for item in whole.items] == [tuple(encode(letter * 30)) for letter in "abc"]
    assert lengths(whole) == [(30, 7)] * 3
    assert whole.notes[1] == "prompts: those of prompts.jsonl"
    assert len(build(prompts=prompts, num_requests=2).items) == 2
    letters = set(encode("abc"))
    for cut in (build(prompts=prompts, trace=trace), build(prompts=prompts, prompt_tokens="12", num_requests=9)):
        assert all(set(item.prompt_token_ids) <= letters for item in cut.items)
        assert cut.notes[1] == "prompts: cut from prompts.jsonl, seed 0"
    assert lengths(cut) == [(12, 86)] * 9


@pytest.mark.parametrize("arrival", ["constant", "poisson", "gamma", "on_off"])
def test_each_arrival_process_can_be_asked_for_with_or_without_a_trace(trace: Path, arrival: str) -> None:
    for values in ({"trace": trace}, {"num_requests": 5}):
        workload = build(arrival=arrival, request_rate=2.0, **values)
        times = [item.arrival_s for item in workload.items]
        assert len(set(times)) == 5
        assert times == sorted(times)
    if arrival == "constant":
        assert times == [0, 0.5, 1, 1.5, 2]


def test_burstiness_alone_makes_poisson_gamma() -> None:
    bursty = build(request_rate=2.0, burstiness=0.5)
    assert bursty == build(request_rate=2.0, burstiness=0.5, arrival="gamma")
    assert "gamma of burstiness 0.5, 2/s" in bursty.notes[0]
    assert build(request_rate=2.0) == build(request_rate=2.0, arrival="poisson") != bursty


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"num_requests": 0}, "num_requests"),
        ({"request_rate": 0.0}, "request_rate"),
        ({"request_rate": math.nan}, "request_rate"),
        ({"length_scale": 0.0}, "length_scale"),
        ({"on_s": 0.0}, "on_s"),
        ({"off_s": -1.0}, "off_s"),
        ({"prompt_tokens": "many"}, "lengths are"),
        ({"trace": Path("t"), "prompt_tokens": "3"}, "its own lengths"),
        ({"arrival": "sometimes"}, "arrival must be"),
        ({"arrival": "replay"}, "there is none"),
        ({"arrival": "gamma"}, "request_rate"),
        ({"burstiness": 0.0, "request_rate": 1.0}, "burstiness"),
        ({"burstiness": 2.0}, "burstiness"),
        ({"burstiness": 2.0, "arrival": "constant", "request_rate": 1.0}, "burstiness"),
    ],
)
def test_settings_out_of_range_or_at_odds_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        WorkloadConfig(**values)


def test_more_requests_than_there_are_are_refused(trace: Path, prompts: Path) -> None:
    with pytest.raises(ValueError, match=r"trace.jsonl holds 5 requests, not 6"):
        build(trace=trace, num_requests=6)
    with pytest.raises(ValueError, match=r"prompts.jsonl holds 3 requests, not 4"):
        build(prompts=prompts, num_requests=4)


def test_text_needs_a_tokenizer_and_tokens_a_vocabulary_that_has_them(prompts: Path) -> None:
    config = WorkloadConfig(prompts=prompts)
    with pytest.raises(ValueError, match="tokenizer"):
        build_workload(config, VOCAB_SIZE, MAX_MODEL_LEN)
    with pytest.raises(ValueError, match="request 0: token id 97"):
        build_workload(config, 97, MAX_MODEL_LEN, encode)


def test_every_setting_is_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, WorkloadConfig)
    flags = "--trace t.csv --trace-format azure --num-requests 9 --request-rate inf --length-scale 0.5 --seed 3"
    assert from_args(WorkloadConfig, parser.parse_args(flags.split())) == WorkloadConfig(
        trace=Path("t.csv"), trace_format="azure", num_requests=9, request_rate=math.inf, length_scale=0.5, seed=3
    )
    assert from_args(WorkloadConfig, parser.parse_args([])) == WorkloadConfig()
    assert "lognormal" in parser.format_help()
