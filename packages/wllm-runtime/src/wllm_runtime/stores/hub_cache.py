"""Models in the cache of the Hugging Face hub's client, which many programs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wllm_runtime.stores.download_record import is_own
from wllm_runtime.stores.folders import gguf_models, safetensors_model
from wllm_runtime.stores.stored_model import OnTrouble, StoredModel

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo


def hub_cache_folder() -> Path:
    """The folder of the cache, which may not exist."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def scan() -> HFCacheInfo | None:
    """What the hub's client sees in its cache; None without one. Raises `OSError` where it cannot be read."""
    from huggingface_hub import scan_cache_dir

    folder = hub_cache_folder()
    return scan_cache_dir(folder) if folder.is_dir() else None


def hub_models(on_trouble: OnTrouble) -> Iterator[StoredModel]:
    """The models of the cache by their hub ids, GGUF files by hub id and name."""
    try:
        cache = scan()
    except OSError as error:
        on_trouble(f"{hub_cache_folder()} cannot be read: {error}")
        return
    if cache is None:
        return
    for damage in cache.warnings:
        on_trouble(f"{damage} (left out)")
    for repository in sorted(cache.repos, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model" and repository.revisions:
            yield from _models(repository)


def _models(repository: CachedRepoInfo) -> Iterator[StoredModel]:
    # Where several revisions are kept: the one that is served by default, else the newest.
    revision = max(repository.revisions, key=lambda each: ("main" in each.refs, each.last_modified))
    folder = revision.snapshot_path
    names = {file.file_path.relative_to(folder).as_posix(): file for file in revision.files}
    ggufs = {f"{repository.repo_id}/{name}": (file.file_path, file.size_on_disk) for name, file in names.items()}
    found = list(gguf_models(ggufs, "hub"))
    yield from found
    own = is_own(repository.repo_path)
    weights = [name for name in names if name.endswith(".safetensors")]
    if weights:
        yield safetensors_model(repository.repo_id, folder, repository.size_on_disk, weights, "hub", own=own)
    elif any((repository.repo_path / "blobs").glob("*.incomplete")):
        # Its name does not say of what; beside weights it may be a leftover of a process that was killed.
        note = "its weights have not arrived"
        yield StoredModel(repository.repo_id, folder, repository.size_on_disk, "incomplete", "hub", own, note)
    elif not found:
        note = "no weights in safetensors or GGUF"
        yield StoredModel(repository.repo_id, folder, repository.size_on_disk, "other", "hub", own, note)
