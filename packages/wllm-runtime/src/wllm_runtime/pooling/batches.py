"""Groups texts of like lengths, so that little of a forward pass is padding."""

from __future__ import annotations

from collections.abc import Sequence

from wllm_sched.text_queue import QueuedText

# A group ends where a row would be this much longer than the shortest one; a few tokens more never matter.
_LONGER = 1.25
_MORE = 8


def groups_of(texts: Sequence[QueuedText]) -> list[list[QueuedText]]:
    """The same texts, shortest first, cut where the lengths differ too much."""
    groups: list[list[QueuedText]] = []
    for queued in sorted(texts, key=lambda one: one.length):
        if not groups or queued.length > _LONGER * groups[-1][0].length + _MORE:
            groups.append([])
        groups[-1].append(queued)
    return groups
