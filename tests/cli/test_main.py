"""The command ``inflight`` as a user runs it: exit codes, and one clear line where something is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

import inflight
from inflight.cli import COMMANDS, main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"inflight {inflight.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([command, "--help"])
    assert exited.value.code == 0
    assert f"inflight {command}" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["serv"], ["generate"], ["chat", "--temperatur", "1"]], ids=str)
def test_wrong_usage_exits_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(argv)
    assert exited.value.code == 2


@pytest.mark.parametrize(
    ("argv", "exit_code", "named"),
    [
        (["generate", "hello", "--max-num-seqs", "0"], 2, "max_num_seqs"),
        (["generate", "hello", "--temperature", "nan"], 2, "temperature"),
        (["generate", "hello", "--max-tokens", "0"], 2, "max_tokens"),
        (["chat", "/nowhere/model.gguf"], 1, "/nowhere/model.gguf"),
        (["serve", "/nowhere/model.gguf"], 1, "/nowhere/model.gguf"),
        (["serve", "--scheduling-policy", "priority", "--max-num-batched-tokens", "1"], 2, "max_num_batched_tokens"),
    ],
    ids=str,
)
def test_an_error_is_one_line_and_an_exit_code(
    argv: list[str], exit_code: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == exit_code
    error = capsys.readouterr().err
    assert error.startswith("inflight: ")
    assert error.count("\n") == 1
    assert named in error


@pytest.mark.parametrize(
    ("argv", "closed"),
    [
        (["generate", "hi"], "stdout"),
        (["generate", "-"], "stdin"),
        (["chat"], "stdin"),
        (["chat"], "stdout"),
    ],
    ids=str,
)
def test_a_closed_stream_that_is_needed_is_one_line(argv: list[str], closed: str) -> None:
    fd = ("stdin", "stdout").index(closed)
    command = f'exec "$0" -m inflight.cli "$@" {fd}>&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, *argv], input="", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"inflight: {closed} is closed\n")


def test_a_closed_stderr_changes_nothing_but_what_is_seen() -> None:
    command = 'exec "$0" -m inflight.cli pull /nowhere/model.gguf 2>&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_ctrl_c_while_modules_are_imported_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inflight.cli.importlib.import_module", interrupted)
    assert main(["serve"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("imports", ["inflight", "inflight.cli", "inflight.commands.serve"])
def test_torch_is_imported_where_a_model_runs_and_nowhere_else(imports: str) -> None:
    code = f"import {imports}, inflight, sys; inflight.SamplingParams(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_exports_are_what_they_say() -> None:
    from inflight.core.request import SamplingParams
    from inflight.llm import LLM

    assert (inflight.LLM, inflight.SamplingParams) == (LLM, SamplingParams)
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = inflight.NoSuchName


def test_the_license_is_the_one_that_the_project_names() -> None:
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0" in text
