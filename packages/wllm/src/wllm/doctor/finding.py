"""`Finding`: what one check saw. Its own words are ASCII, so that any console can print them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from wllm.doctor.shell_command import ShellCommand

if TYPE_CHECKING:
    from wllm.doctor.facts import Facts


class Verdict(IntEnum):
    """From fine to broken. A note needs no action; after a warning wLLM runs, but maybe not well."""

    OK = 0
    NOTE = 1
    WARNING = 2
    PROBLEM = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, the verdict, what was seen, why it matters and what to do; the last two may be empty.

    `command` does it, where a command can.
    """

    check: str
    verdict: Verdict
    seen: str
    reason: str = ""
    fix: str = ""
    command: ShellCommand | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A name and a function that yields findings. It may raise: the examination reports that as a finding."""

    name: str
    look: Callable[[Facts], Iterator[Finding]]
