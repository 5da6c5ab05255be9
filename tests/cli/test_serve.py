"""``inflight serve`` as a process: what it prints works as printed, and it ends as it was told to."""

import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from inflight.engine.recorder import Started, read_step_log

FLAGS = ["--port", "0", "--num-threads", "1", "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "32"]


@contextmanager
def serving(*argv: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server that is ready, and the lines it printed."""
    command = [sys.executable, "-m", "inflight.cli", "serve", *argv, *FLAGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.split()[:1] == ["try"]:
                    break
            yield process, lines
        finally:
            process.kill()


def test_what_is_printed_works_as_printed(tiny_model: str, tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    with serving(tiny_model, "--served-model-name", "it's tiny", "--step-log", str(log)) as (process, lines):
        shown = "".join(lines)
        assert "max_model_len 256" in shown
        assert "max_num_batched_tokens 64" in shown
        assert "32 KV blocks of 16 tokens" in shown
        curl, url, *options = shlex.split(lines[-1])[1:]
        assert (curl, options[:3]) == ("curl", ["-H", "Content-Type: application/json", "-d"])
        body = json.loads(options[3])
        assert body["model"] == "it's tiny"
        # Unseeded: a first token may be the end token, unless it is ignored.
        answer = httpx.post(url, json={**body, "max_tokens": 4, "ignore_eos": True}, timeout=60)
        assert answer.status_code == 200
        assert answer.json()["model"] == "it's tiny"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    first, *rest = read_step_log(log)
    assert isinstance(first, Started)
    assert first.config["max_model_len"] == 256
    assert len(rest) > 3


def test_a_port_in_use_is_one_line(tiny_model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "inflight.cli", "serve", tiny_model, "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert str(port) in done.stderr
