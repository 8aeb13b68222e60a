"""Parts of files that a killed download left in the hub's cache, which the hub's client never takes up again.

Each has a name of its own, the file's etag and a random suffix, so that the next download begins a new one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Set
from pathlib import Path

logger = logging.getLogger(__name__)

# Without a suffix they are an older client's, which does take them up again.
_NAME = re.compile(r"(.+)\.[0-9a-f]{8}\.incomplete")
_LOCK_WAIT = 0.1  # seconds


def leftovers(repository: Path) -> frozenset[str]:
    """Names of the parts in `repository`, a folder of the cache; a download that goes on has some too."""
    return frozenset(path.name for path in (repository / "blobs").glob("*.incomplete") if _NAME.fullmatch(path.name))


def delete_leftovers(repository: Path, kept: Set[str]) -> None:
    """Delete the parts but those named in `kept` and those that a download, ours or another's, is writing now."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    for name in sorted(leftovers(repository) - kept):
        part = _NAME.fullmatch(name)
        assert part is not None, "leftovers have such names"
        lock = repository.parent / ".locks" / repository.name / f"{part[1]}.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with WeakFileLock(lock, timeout=_LOCK_WAIT):  # held while the file is fetched
                (repository / "blobs" / name).unlink(missing_ok=True)
        except OSError as error:  # filelock's Timeout is one
            logger.info("%s stays in %s: %s", name, repository, error)
