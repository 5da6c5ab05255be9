from collections.abc import Callable
from pathlib import Path

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from inflight.hub import resolve as resolve_module
from inflight.hub.embedded import EmbeddedModel
from inflight.hub.resolve import ModelFiles, ModelUnavailable, resolve


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model and the hub answer with where they would look."""
    monkeypatch.setattr(resolve_module, "fetch", lambda model, folder, show: Path("/cache") / model.file_name)


def touch(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("")
    return folder


def say_not_fetched(model: EmbeddedModel, folder: Path, show: bool) -> Path:
    raise AssertionError("the embedded model was fetched")


@pytest.mark.parametrize("model", [None, "SmolLM2-135M-Instruct", "smollm2-135m-instruct"])
def test_embedded(model: str | None) -> None:
    assert resolve(model) == ModelFiles("SmolLM2-135M-Instruct", Path("/cache/SmolLM2-135M-Instruct.Q4_1.gguf"))


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_module, "fetch", say_not_fetched)
    touch(tmp_path / "SmolLM2-135M-Instruct", "config.json", "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert resolve("SmolLM2-135M-Instruct").path == Path("SmolLM2-135M-Instruct")


def test_gguf_file(tmp_path: Path) -> None:
    file = touch(tmp_path, "a.Q8_0.gguf") / "a.Q8_0.gguf"
    assert resolve(str(file)) == ModelFiles("a.Q8_0", file)


def test_folder_with_safetensors(tmp_path: Path) -> None:
    folder = touch(tmp_path / "llama", "config.json", "model-00001-of-00002.safetensors", "x.gguf")
    assert resolve(str(folder)) == ModelFiles("llama", folder)


def test_folder_with_one_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = touch(tmp_path / "llama", "config.json", "x.GGUF", "readme.md")
    assert resolve(str(folder)) == ModelFiles("llama", folder / "x.GGUF")
    monkeypatch.chdir(folder)
    assert resolve(".") == ModelFiles("llama", Path("x.GGUF"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: touch(folder, "a.gguf", "b.gguf"), "several .gguf files, name one: a.gguf, b.gguf"),
        (lambda folder: touch(folder, "model.safetensors"), "neither config.json with .*safetensors, nor a .gguf file"),
        (lambda folder: touch(folder, "model.bin") / "model.bin", "is not a .gguf file"),
        (lambda folder: folder / "absent.gguf", "not a file or folder here .*not the name of the embedded model"),
        (lambda _: "org/absent.gguf", "no model 'org/absent.gguf'"),
        (lambda _: "llama", "not a hub name"),
        (lambda _: "~nouser-of-this-name/x", "'~nouser-of-this-name/x' cannot be looked for"),
        (lambda _: "a/b/c", "not a hub name"),
        (lambda _: "", "no model|has no model"),
    ],
)
def test_what_is_not_found_says_what_was_looked_for(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    with pytest.raises(ModelUnavailable, match=words):
        resolve(str(make(tmp_path)))


def test_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        "config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "pytorch_model.bin", "README.md",
        "original/model.safetensors", "onnx/config.json", "consolidated.safetensors", "x.gguf",
    ]  # fmt: skip

    def snapshot(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        chosen = filter_repo_objects(files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        return str(touch(tmp_path / name.replace("/", "--"), *chosen))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    found = resolve("org/model", show_progress=False)
    assert found.name == "org/model"
    names = sorted(path.name for path in found.path.iterdir())
    assert names == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]


RESPONSE = httpx.Response(404, request=httpx.Request("GET", "http://hub"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RepositoryNotFoundError("no", response=RESPONSE), "knows no model 'org/model'.*HF_TOKEN"),
        (GatedRepoError("no", response=RESPONSE), "terms to be accepted"),
        (LocalEntryNotFoundError("no"), "cannot be reached.*give no model at all"),
        (HFValidationError("bad name"), "could not be downloaded.*bad name"),
        (httpx.ConnectError("refused"), "could not be downloaded.*refused"),
        (OSError(28, "No space left on device"), "No space left"),
    ],
)
def test_hub_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def snapshot(name: str, **_: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ModelUnavailable, match=words):
        resolve("org/model", show_progress=False)
