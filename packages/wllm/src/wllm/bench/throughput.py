"""`wllm bench throughput`: tokens a second of many chat-like requests that come at once."""

from __future__ import annotations

import argparse
import dataclasses

from wllm.bench.lengths import chat_like, describe
from wllm.bench.measure import Mix
from wllm.bench.session import Session
from wllm.bench.subject import subject_of


def throughput(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    shapes = tuple(chat_like(args.num_requests, args.seed, args.longest))
    mix = Mix(shapes, args.seed)
    with subject_of(args, num_seqs=min(args.num_requests, 256)) as subject:
        session = Session("throughput", args, subject)
        with session.engine() as engine:
            session.measure(engine, [mix])
        (output,) = session.report.rows
        share = mix.num_tokens / mix.num_output_tokens
        both = tuple(sample * share for sample in output.samples)
        session.add(dataclasses.replace(output, what=f"in and {output.what}", samples=both))
        return session.finish(describe(shapes))
