"""Models from the Hugging Face hub, for those who have a network."""

from __future__ import annotations

from pathlib import Path

from inflight.hub.errors import ModelUnavailable

_WANTED = ["*.safetensors", "*.json", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*"]  # other formats in subfolders, the same weights a second time


def download_snapshot(name: str, show_progress: bool) -> Path:
    """The folder of ``org/name`` in the hub's own cache, downloaded or updated first. Raises ``ModelUnavailable``."""
    # Imported here, because most starts do without the hub.
    import httpx
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hide = not show_progress and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except GatedRepoError as error:
        raise ModelUnavailable(
            f"{name} asks for its terms to be accepted: do so on its page on the hub, then set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelUnavailable(f"the hub knows no model {name!r}; if it is private, set HF_TOKEN") from error
    except LocalEntryNotFoundError as error:
        raise ModelUnavailable(
            f"{name} is not in the hub's cache on this machine, and the hub cannot be reached. Without a network, copy "
            "the model's folder here and give its path, or give no model at all: the embedded one needs no hub"
        ) from error
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise ModelUnavailable(f"{name} could not be downloaded from the hub: {error}") from error
    finally:
        if hide:
            enable_progress_bars()
