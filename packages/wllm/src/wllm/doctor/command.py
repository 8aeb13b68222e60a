"""The `doctor` command of the command line. What it needs is imported when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from wllm.console import say

if TYPE_CHECKING:
    from wllm.doctor.finding import Finding

_EPILOG = """verdicts:
  ok        as it should be
  note      good to know; nothing has to be done
  warning   wLLM runs, but maybe not well
  problem   wLLM does not run, or not on the GPU that is there

The exit code is 1 with a problem, else 0. Nothing is sent, and nothing changed or downloaded but by a
command of --fix that you said yes to."""


def add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor`."""
    doctor = commands.add_parser(
        "doctor",
        help="look for what keeps wLLM from running well here, and how to mend it",
        description="Look at the system, Python, the installation, torch, the driver, GPUs, disks and the port.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = doctor.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document, to post or to read by a program")
    form.add_argument("--fix", action="store_true", help="offer each command that mends something, and look again")
    doctor.add_argument(
        "--kernels", action="store_true", help="run every kernel on each GPU against its reference; takes a minute"
    )
    doctor.add_argument("--port", type=int, default=8000, help="the port that `wllm serve` shall have (default: 8000)")
    doctor.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from wllm.doctor.finding import Verdict
    from wllm.doctor.mending import mend

    findings = _look(args)
    if args.fix and mend(findings):
        say()
        findings = _look(args)
    return int(any(finding.verdict == Verdict.PROBLEM for finding in findings))


def _look(args: argparse.Namespace) -> list[Finding]:
    from wllm.doctor.examination import checks_here, examine
    from wllm.doctor.facts import Facts
    from wllm.doctor.report import json_report, text_report

    findings = examine(Facts(port=args.port), checks_here(kernels=args.kernels))
    try:
        say(json_report(findings) if args.json else text_report(findings))
    except OSError:
        # Its reader has gone, as `| more` does; Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return findings
