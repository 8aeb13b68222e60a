"""Which files of the hub's cache wLLM itself downloaded: a record in the folder of each repository that it fetched.

The folder is shared with every program that uses the hub's client, so what was there before, and what others add later,
is not ours. A record goes with its folder, whoever deletes that.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wllm_runtime.stores.leftovers import delete_leftovers, leftovers

logger = logging.getLogger(__name__)

_NAME = "wllm.json"


@dataclass(frozen=True, slots=True)
class _Record:
    """Our files, and what was there before a download that has not ended; None where all have."""

    ours: frozenset[str] = frozenset()
    before: frozenset[str] | None = None


@contextmanager
def recorded(repository: Path) -> Iterator[None]:
    """Note as ours the files that come meanwhile into `repository`, a folder of the cache, which may not exist yet.

    A process that is killed, as an engine is that still loads, leaves a record of what was there before. The next
    download takes that over, and deletes the parts of files that have come since.
    """
    record = _read(repository)
    if record.before is None:
        before = _files(repository) | leftovers(repository)
    else:
        before = record.before
        delete_leftovers(repository, before)
    _write(repository, _Record(record.ours, before))
    try:
        yield
    finally:
        _write(repository, _Record(_read(repository).ours | (_files(repository) - before)))


def is_own(repository: Path) -> bool:
    """Whether wLLM downloaded every file that `repository` has."""
    record, found = _read(repository), _files(repository)
    started = frozenset() if record.before is None else found - record.before
    return bool(found) and found <= record.ours | started


def _files(repository: Path) -> frozenset[str]:
    snapshots = repository / "snapshots"
    paths = snapshots.rglob("*") if snapshots.is_dir() else ()
    return frozenset(path.relative_to(snapshots).as_posix() for path in paths if not path.is_dir())


def _read(repository: Path) -> _Record:
    try:
        content = json.loads((repository / _NAME).read_text(encoding="utf-8"))
        before = content["before"]
        return _Record(frozenset(content["files"]), None if before is None else frozenset(before))
    except (OSError, ValueError, KeyError, TypeError):  # none, or none of ours: nothing is known to be ours
        return _Record()


def _write(repository: Path, record: _Record) -> None:
    file = repository / _NAME
    try:
        if not record.ours and record.before is None:
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds something, so it is no empty folder that we made
                repository.rmdir()
            return
        repository.mkdir(parents=True, exist_ok=True)
        before = None if record.before is None else sorted(record.before)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"files": sorted(record.ours), "before": before}), encoding="utf-8")
        temporary.replace(file)
    except OSError as error:  # a cache that others keep: downloads may still work
        logger.info("%s cannot be written (%s): `wllm models rm` will not know what wLLM downloaded.", file, error)
