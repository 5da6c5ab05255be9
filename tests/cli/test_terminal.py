"""``inflight generate`` and ``inflight chat``: what is written is what the model says, as it says it."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inflight import LLM, SamplingParams
from inflight.cli import main
from inflight.commands.chat import talk

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
FLAGS = [
    "--temperature",
    "0",
    "--max-tokens",
    "12",
    "--max-num-batched-tokens",
    "64",
    "--num-gpu-blocks-override",
    "32",
]


@pytest.fixture(scope="module")
def llm(tiny_model: str) -> Any:
    with LLM(tiny_model, num_threads=1, max_num_batched_tokens=64, num_gpu_blocks_override=32) as llm:
        yield llm


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(llm: LLM, messages: list[dict[str, str]]) -> str:
    return llm.chat(messages, GREEDY, use_tqdm=False)[0].outputs[0].text


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))


def test_generate_answers_through_the_chat_template(
    llm: LLM, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", "--model", tiny_model, *FLAGS]) == 0
    assert capsys.readouterr().out == answer(llm, [said("hello")]) + "\n"


def test_generate_raw_continues_the_text_from_stdin(
    llm: LLM, tiny_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "héllo 🦙")
    assert main(["generate", "-", "--raw", "--model", tiny_model, *FLAGS]) == 0
    assert capsys.readouterr().out == llm.generate("héllo 🦙\n", GREEDY, use_tqdm=False)[0].outputs[0].text + "\n"


@pytest.mark.parametrize("argv", [["x" * 1000], ["x" * 1000, "--raw"], ["", "--raw"]], ids=["long", "raw", "empty"])
def test_a_prompt_that_cannot_run_is_one_line(
    tiny_model: str, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert main(["generate", *argv, "--model", tiny_model, *FLAGS]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_pipe_gets_utf_8_whatever_the_locale(tiny_model: str, llm: LLM) -> None:
    argv = [sys.executable, "-m", "inflight.cli", "generate", "héllo 🦙", "--model", tiny_model, *FLAGS]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(argv, env=environment, capture_output=True, check=True)
    assert done.stdout.decode("utf-8") == answer(llm, [said("héllo 🦙")]) + "\n"


def test_chat_remembers_until_it_is_reset(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "one", "", "two", "/reset", "two", "/exit", "never")
    talk(llm, GREEDY)
    first = answer(llm, [said("one")])
    second = answer(llm, [said("one"), {"role": "assistant", "content": first}, said("two")])
    fresh = answer(llm, [said("two")])
    assert second != fresh
    assert capsys.readouterr().out == f"{first}\n{second}\n{fresh}\n"


def test_chat_ends_with_its_input(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch)
    talk(llm, GREEDY)


def test_ctrl_c_stops_an_answer_and_not_the_conversation(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = llm.stream

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(llm, "stream", stream)
        deltas = stream(*args)
        try:
            for delta in deltas:
                yield delta
                raise KeyboardInterrupt
        finally:
            deltas.close()

    monkeypatch.setattr(llm, "stream", interrupted)
    type_in(monkeypatch, "one", "two")
    talk(llm, GREEDY)
    cut, second = capsys.readouterr().out.splitlines()
    assert answer(llm, [said("one")]).startswith(cut)
    assert second == answer(llm, [said("one"), {"role": "assistant", "content": cut}, said("two")])


def test_a_conversation_that_no_longer_fits_says_so_and_keeps_what_it_has(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "one", "x" * 1000, "two")
    talk(llm, GREEDY)
    shown = capsys.readouterr()
    assert "/reset" in shown.err
    first = answer(llm, [said("one")])
    assert shown.out == f"{first}\n{answer(llm, [said('one'), {'role': 'assistant', 'content': first}, said('two')])}\n"


def test_a_reader_that_leaves_early_is_no_error(tiny_model: str, tmp_path: Path) -> None:
    argv = f"{sys.executable} -m inflight.cli generate hello --model {tiny_model} {' '.join(FLAGS)} | head -c 1"
    done = subprocess.run(argv, shell=True, capture_output=True, check=True)
    assert len(done.stdout) <= 1
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr
