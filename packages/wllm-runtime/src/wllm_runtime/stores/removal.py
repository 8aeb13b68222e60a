"""Deleting a model that wLLM downloaded, and refusing every other with the name of its owner."""

from __future__ import annotations

from dataclasses import replace

from wllm_runtime.errors import StoreError
from wllm_runtime.stores.hub_cache import scan
from wllm_runtime.stores.stored_model import StoredModel


def remove(model: StoredModel) -> None:
    """Delete `model` with all its revisions; raises `StoreError` if it is another's, or cannot be deleted."""
    if not model.own:
        raise StoreError(f"{model.name} was not deleted: {_owner(model)}")
    repository = model.path.parent.parent
    try:
        if cache := scan():
            # Of this repository alone: copies of a repository have its commits.
            alone = replace(cache, repos=frozenset(repo for repo in cache.repos if repo.repo_path == repository))
            commits = [revision.commit_hash for repo in alone.repos for revision in repo.revisions]
            alone.delete_revisions(*commits).execute()
    except OSError as error:
        raise StoreError(f"{model.name} was not deleted wholly: {error}. Delete {repository} yourself.") from error
    if repository.exists():
        raise StoreError(
            f"{model.name} was not deleted wholly: files of {repository} are in use, or not yours to delete. "
            "End the programs that use it and delete the folder."
        )


def _owner(model: StoredModel) -> str:
    if model.source == "ollama":
        return f"it is Ollama's, and wLLM deletes only what it downloaded. `ollama rm {model.name}` deletes it."
    if model.source == "lm-studio":
        return f"{model.path} is LM Studio's, and wLLM deletes only what it downloaded. Delete it in LM Studio."
    if model.source == "folder":
        return f"{model.path} is in a folder of yours, and wLLM deletes only what it downloaded. Delete it yourself."
    repository = "/".join(model.name.split("/")[:2])
    return (
        f"not all files of {model.path} were downloaded by wLLM; the hub's cache has them from other programs. "
        f"`hf cache rm model/{repository}` deletes them."
    )
