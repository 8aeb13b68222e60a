"""What a step costs in whole numbers that no machine changes: launches, torch ops, tensors, calls of functions.

Compares them with counts.json, so that a commit that adds work to a step says so. Exit code 1 on any difference; one
that is meant is accepted with `nox -s bench -- counts --accept`, and counts.json is committed with the change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from _common import print_table
from _scheduler_counts import scheduler_counts
from _step_counts import step_counts

COMMITTED = Path(__file__).parent / "counts.json"
ACCEPT = "nox -s bench -- counts --accept"

# Tidying up splits and joins functions all the time. The distance is to what was accepted, so it cannot creep.
CALLS = ("Python calls", "admission", "decode")
TOLERANCE = 0.1

Counts = Mapping[str, Mapping[str, int]]


def differences(committed: Counts, measured: Counts) -> Iterator[str]:
    """A line for each count that differs; calls of Python functions may do so a little."""
    for case in dict.fromkeys((*committed, *measured)):
        before, after = committed.get(case, {}), measured.get(case, {})
        for what in dict.fromkeys((*before, *after)):
            old, new = before.get(what), after.get(what)
            if old == new or (old and new and what in CALLS and abs(new - old) <= TOLERANCE * old):
                continue
            if old is None or new is None:
                yield f"{case}: {what} is {'new' if old is None else 'gone'}"
            else:
                yield f"{case}: {what} {'grew' if new > old else 'shrank'} from {old} to {new}"


def main() -> int:
    """Measure, then compare or accept; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--accept", action="store_true", help="write what is measured to the file")
    parser.add_argument("--file", type=Path, default=COMMITTED, help="(default: counts.json beside this script)")
    args = parser.parse_args()
    measured = {**step_counts(), **scheduler_counts()}
    for title, is_step in (("Counts of the worst step", True), ("Python calls of the scheduler in a step", False)):
        cases = {name: counts for name, counts in measured.items() if name.startswith("scheduler") != is_step}
        header = next(iter(cases.values()))
        print_table(title, ("case", *header), [(name, *counts.values()) for name, counts in cases.items()])
    if args.accept:
        args.file.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        return 0
    found = list(differences(json.loads(args.file.read_text(encoding="utf-8")), measured))
    if found:
        print("\n".join(found))
        print(f"A step does another amount of work than {args.file.name} says. If that is meant: {ACCEPT}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
