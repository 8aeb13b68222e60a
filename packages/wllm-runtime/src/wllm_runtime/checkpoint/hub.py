"""Models from the Hugging Face hub: the files that we need, into the hub's own cache.

Owns the choice of files and the words for what can go wrong. Never fetches pickled weights, never runs code. After a
broken connection a file goes on where it stopped. A second call keeps the files that arrived wholly, and needs no
network when all have.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import are_symlinks_supported, repo_folder_name

from wllm_runtime.checkpoint.errors import CheckpointError, DownloadFailed, ModelNotFound
from wllm_runtime.checkpoint.sentence_modules import module_folders
from wllm_runtime.stores.download_record import recorded

logger = logging.getLogger(__name__)

_SETTINGS = ["*.json", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt", "*.jinja"]
_WEIGHTS = ["*.safetensors"]
# Folders hold other formats; consolidated*.safetensors repeats all weights under other names.
_IGNORED = ["*/*", "consolidated*.safetensors"]
_ERROR_DISK_FULL = 112  # Windows


def download(repo_id: str, *, revision: str | None = None, weights: bool = True) -> Path:
    """The local directory of a hub model; raises `ModelNotFound` or `DownloadFailed` that names the id.

    Shows the hub's progress bars. `weights` False fetches configuration and tokenizer only.
    """
    # The hub's own words on missing symlinks read like a failure; ours come below, once.
    constants.HF_HUB_DISABLE_SYMLINKS_WARNING = True
    where = f"{repo_id!r}" + (f" at revision {revision!r}" if revision else "")
    patterns = _SETTINGS + (_WEIGHTS if weights else [])
    try:
        repository = repo_folder_name(repo_id=repo_id, repo_type="model")
        with recorded(Path(constants.HF_HUB_CACHE, repository)):
            directory = _fetch(repo_id, revision, patterns)
    except CheckpointError:
        raise
    except GatedRepoError as error:
        raise DownloadFailed(
            f"The hub model {where} is gated: its licence must be accepted on {constants.ENDPOINT}/{repo_id}, and "
            "HF_TOKEN set to a token of that account (or `hf auth login` run). Then start again."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"The hub at {constants.ENDPOINT} has no model {where}, or it is private, and there is no such local path. "
            "Check the spelling; for a private model set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"The hub model {where} does not exist: no such branch, tag or commit.") from error
    except HFValidationError as error:
        raise ModelNotFound(f"{where} is neither a local path nor a hub id: {error}.") from error
    except LocalEntryNotFoundError as error:
        raise DownloadFailed(
            f"The hub model {where} is not (or not wholly) in the cache {constants.HF_HUB_CACHE}, and "
            f"{constants.ENDPOINT} cannot be reached: {_first_line(error)} Check the network, proxy and HF_HUB_OFFLINE."
        ) from error
    except Exception as error:  # the hub raises its HTTP client's own kinds, which differ between its versions
        if isinstance(error, OSError) and _is_disk_full(error):
            raise DownloadFailed(
                f"The disk of {constants.HF_HUB_CACHE} is full: {where} could not be stored. Free some space, or set "
                "HF_HOME to a folder on another disk."
            ) from error
        raise DownloadFailed(
            f"The hub model {where} could not be downloaded: {type(error).__name__}: {_first_line(error)} "
            "Files that arrived wholly are kept; start again to go on."
        ) from error
    if not Path(directory, "config.json").is_file():
        raise ModelNotFound(
            f"The hub model {where} holds no config.json, so it is not in Hugging Face format. If it holds GGUF files, "
            "download one of them and give its path."
        )
    if not are_symlinks_supported(constants.HF_HUB_CACHE):
        logger.info("No symbolic links here: several revisions of a model do not share their files in the cache.")
    return Path(directory)


def _fetch(repo_id: str, revision: str | None, patterns: list[str]) -> str:
    directory = snapshot_download(
        repo_id,
        revision=revision,
        allow_patterns=patterns,
        ignore_patterns=_IGNORED,
        library_name="wllm",
    )
    # Those of sentence-transformers keep modules in folders of their own, some the transformer too.
    folders = module_folders(Path(directory))
    if folders:
        snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=[f"{folder}/{pattern}" for folder in folders for pattern in patterns],
            library_name="wllm",
        )
    return directory


def _is_disk_full(error: OSError) -> bool:
    return error.errno == errno.ENOSPC or getattr(error, "winerror", None) == _ERROR_DISK_FULL


def _first_line(error: Exception) -> str:
    return f"{(str(error).strip().splitlines() or ['no details'])[0].rstrip(' .:')}."
