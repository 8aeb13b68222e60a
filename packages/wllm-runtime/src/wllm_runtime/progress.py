"""The bar that shows how far something long is: the start of an engine, a load on a server."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(description: str, **options: Any) -> tqdm[Any]:
    """A bar on a terminal, nothing in a log file or where there is no stderr, as in Windows programs without a console.

    `options` are tqdm's.
    """
    return tqdm(desc=description, disable=None if sys.stderr is not None else True, **options)
