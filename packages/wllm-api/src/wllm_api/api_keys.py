"""The API keys that a server is started with: from the command line, a file, the environment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wllm_api.http_errors import UnusableKey


def read_key_file(path: Path) -> tuple[str, ...]:
    """The keys in a UTF-8 file, one a line; lines that begin with # are comments. Raises `UnusableKey`."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableKey(
            f"The file of API keys {path} cannot be read: {error}. Name a text file in UTF-8; what > makes in Windows "
            "PowerShell is UTF-16: Set-Content -Encoding utf8 makes another."
        ) from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise UnusableKey(f"The file of API keys {path} holds no key. Write one key a line.")
    return keys


def checked_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """The keys, each once; raises `UnusableKey`, without the key itself, for one that no client could send."""
    keys = tuple(dict.fromkeys(keys))
    for number, key in enumerate(keys, start=1):
        if not key or key != key.strip() or not key.isprintable():
            raise UnusableKey(
                f"API key {number} of {len(keys)} is empty, begins or ends with a space, or holds a control character. "
                "No client could send it: choose another."
            )
    return keys
