"""Traces are read in each published format; what is wrong with a line is said with its number."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.workload.trace import FORMATS, Trace, TraceRequest, describe, read_trace

HEADERS = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "mooncake": "",
    "jsonl": "",
}
GOOD = {
    "azure": "2023-11-16 18:15:46.6805900,374,44",
    "burstgpt": "5,ChatGPT,472,18,490,Conversation log",
    "mooncake": '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}',
    "jsonl": '{"arrival_s": 0.5, "num_prompt_tokens": 3, "max_tokens": 2}',
}


def written(folder: Path, trace_format: str, *lines: str) -> Path:
    file = folder / f"trace.{trace_format}"
    file.write_bytes((HEADERS[trace_format] + "\n".join(lines)).encode("latin-1"))
    return file


def test_azure_2023_has_no_zone_and_seven_digits(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:16:00,9,0"]
    file.write_bytes("\r\n".join([HEADERS["azure"].strip(), *rows]).encode())
    trace = read_trace(file, "azure")
    assert trace.requests == (TraceRequest(0.0, 374, 44), TraceRequest(4.314579, 396, 109))
    assert trace.notes == ("trace.csv (azure), less 1 without prompt or output tokens",)


def test_azure_2024_has_a_zone(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 02:00:01+02:00,2399,6"
    file = written(tmp_path, "azure", *rows)
    assert read_trace(file, "azure").requests == (TraceRequest(0.0, 2162, 5), TraceRequest(0.99007, 2399, 6))


def test_mooncake_counts_milliseconds_and_names_blocks(tmp_path: Path) -> None:
    later = GOOD["mooncake"].replace("27482", "30982").replace("[46, 47]", "[46, 48]").replace("52", "0")
    file = written(tmp_path, "mooncake", GOOD["mooncake"], later, later.replace(": 0", ": 7"))
    trace = read_trace(file, "mooncake")
    assert trace.requests == (TraceRequest(0.0, 6955, 52, (46, 47), 512), TraceRequest(3.5, 6955, 7, (46, 48), 512))
    assert "less 1 without" in trace.notes[0]


def test_burstgpt_failures_are_left_out_and_counted(tmp_path: Path) -> None:
    file = written(tmp_path, "burstgpt", GOOD["burstgpt"], "7,GPT-4,9,0,9,API log", "45.5,GPT-4,1087,230,1317,API log")
    trace = read_trace(file, "burstgpt")
    assert trace.requests == (TraceRequest(0.0, 472, 18), TraceRequest(40.5, 1087, 230))
    assert "less 1 without" in trace.notes[0]


def test_jsonl_takes_ids_before_text_before_a_length(tmp_path: Path) -> None:
    line = {"arrival_s": 1, "prompt_token_ids": [7, 8], "prompt": "abc", "num_prompt_tokens": 9, "max_tokens": 4}
    lines = [line, {key: line[key] for key in line if key != "prompt_token_ids"}, {"num_prompt_tokens": 9}]
    lines[2]["max_tokens"] = 4  # and no arrival: at the start
    trace = read_trace(written(tmp_path, "jsonl", *map(json.dumps, lines)), "jsonl", encode=lambda text: [len(text)])
    assert trace.requests == (
        TraceRequest(0.0, 9, 4),
        TraceRequest(1.0, 2, 4, prompt_token_ids=(7, 8)),
        TraceRequest(1.0, 1, 4, prompt_token_ids=(3,)),
    )


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 1: .*tokenizer"):
        read_trace(written(tmp_path, "jsonl", '{"prompt": "abc", "max_tokens": 4}'), "jsonl")


@pytest.mark.parametrize(
    ("trace_format", "line", "named"),
    [
        ("azure", "yesterday,1,1", "yesterday"),
        ("azure", "2023-11-16 18:15:46,1", "2 values"),
        ("azure", "2023-11-16 18:15:46,1,many", "many"),
        ("azure", "2023-11-16 18:15:46,-1,1", "-1"),
        ("azure", "\xff,1,1", "utf-8"),
        ("burstgpt", "5,ChatGPT,472,18,490", "5 values"),
        ("burstgpt", "5,ChatGPT,472.5,18,490,API log", "472.5"),
        ("burstgpt", "nan,ChatGPT,472,18,490,API log", "finite"),
        ("burstgpt", "5,ChatGPT,472,-1,490,API log", "num_output_tokens"),
        ("mooncake", "{", "truncated"),
        ("mooncake", '{"timestamp": 1, "input_length": 5, "output_length": 5}', "hash_ids"),
        ("mooncake", '{"timestamp": 1, "input_length": -5, "output_length": 5, "hash_ids": []}', "input_length"),
        ("mooncake", '{"timestamp": 1, "input_length": 512, "output_length": 5, "hash_ids": [1, 2]}', "2 hash_ids"),
        ("jsonl", '{"arrival_s": 1, "max_tokens": 4}', "num_prompt_tokens"),
        ("jsonl", '{"arrival_s": -1, "num_prompt_tokens": 1, "max_tokens": 4}', "arrival_s"),
        ("jsonl", '{"prompt_token_ids": [], "max_tokens": 4}', "prompt_token_ids"),
        ("jsonl", '{"num_prompt_tokens": 1, "max_tokens": 0}', "max_tokens"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, trace_format: str, line: str, named: str) -> None:
    file = written(tmp_path, trace_format, GOOD[trace_format], "", line)
    number = 3 + HEADERS[trace_format].count("\n")
    with pytest.raises(ValueError, match=f"trace.{trace_format}, line {number}: ") as raised:
        read_trace(file, trace_format)
    assert named in str(raised.value)
    assert len(read_trace(file, trace_format, num_requests=1)) == 1  # no further than asked for


@pytest.mark.parametrize("trace_format", FORMATS)
def test_a_file_without_requests_is_refused(tmp_path: Path, trace_format: str) -> None:
    for text in ("", "\n \n", HEADERS[trace_format]):
        file = tmp_path / "trace"
        file.write_text(text)
        with pytest.raises(ValueError, match="holds no requests"):
            read_trace(file, trace_format)


@pytest.mark.parametrize("trace_format", ["azure", "burstgpt"])
def test_a_header_of_another_file_is_refused(tmp_path: Path, trace_format: str) -> None:
    file = tmp_path / "trace"
    file.write_text("time,length\n1,2\n")
    with pytest.raises(ValueError, match="line 1: the header has no column"):
        read_trace(file, trace_format)


def test_an_unknown_format_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown trace format 'csv'.*azure, mooncake, burstgpt, jsonl"):
        read_trace(tmp_path / "none", "csv")


@given(arrivals=st.lists(st.floats(0, 1e6), min_size=1, max_size=20), data=st.data())
def test_arrivals_are_sorted_from_zero_and_ties_keep_their_order(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[float], data: st.DataObject
) -> None:
    lines = [{"arrival_s": when, "num_prompt_tokens": at + 1, "max_tokens": 1} for at, when in enumerate(arrivals)]
    file = written(tmp_path_factory.mktemp("trace"), "jsonl", *map(json.dumps, lines))
    num_requests = data.draw(st.none() | st.integers(1, len(arrivals)))
    trace = read_trace(file, "jsonl", num_requests)
    first = arrivals[:num_requests]
    order = sorted(range(len(first)), key=first.__getitem__)
    assert [request.num_prompt_tokens - 1 for request in trace] == order
    assert [request.arrival_s for request in trace] == [first[at] - min(first) for at in order]


def test_gzip_is_unpacked_and_a_torn_one_named(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join([GOOD["jsonl"]] * 1000).encode())
    file = tmp_path / "trace.jsonl.gz"
    file.write_bytes(packed)
    assert len(read_trace(file, "jsonl")) == 1000
    file.write_bytes(packed[:-20])
    with pytest.raises(ValueError, match=r"trace\.jsonl\.gz: not a whole gzip file"):
        read_trace(file, "jsonl")


def test_people_are_told_rate_lengths_and_what_was_done() -> None:
    trace = Trace(tuple(TraceRequest(at / 4, at + 1, 2 * (at + 1)) for at in range(200)), ("one", "two"))
    assert describe(trace) == (
        "200 requests, 49.8 s, 4 requests/s; prompt tokens p50 100 p99 198; output tokens p50 200 p99 396; one; two"
    )
    assert "1 requests, all at once" in describe(Trace(trace.requests[:1]))


def test_a_trace_is_sorted_and_not_empty() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Trace(())
    with pytest.raises(ValueError, match="sorted"):
        Trace((TraceRequest(1.0, 1, 1), TraceRequest(0.0, 1, 1)))


@pytest.mark.parametrize(
    "values", [(float("inf"), 1, 1), (0.0, 0, 1), (0.0, 1, 0), (0.0, 1, 1, (3,), 0), (float("nan"), 1, 1)]
)
def test_a_request_that_no_server_could_run_is_refused(values: tuple) -> None:
    with pytest.raises(ValueError, match=r"finite|at least 1"):
        TraceRequest(*values)
