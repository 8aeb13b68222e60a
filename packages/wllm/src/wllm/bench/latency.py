"""`wllm bench latency`: decode steps by batch size beside what memory bandwidth allows; first token; prefill."""

from __future__ import annotations

import argparse

from wllm.bench.measure import DecodeStep, FirstToken, Measurement, Prefill
from wllm.bench.session import Session, floor_of
from wllm.bench.subject import subject_of

METHOD = (
    "A decode step is (time of whole answers - time of first tokens) / (tokens - 1), of two calls with new prompts. "
    "The floor is the bytes that a step must read over the copy bandwidth."
)


def latency(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    count, length = args.prefill
    measurements: list[Measurement] = [
        *(DecodeStep(batch, args.prompt_len, args.output_len) for batch in args.batches),
        FirstToken(args.first_token_len),
        Prefill(count, length),
    ]
    with subject_of(args, num_seqs=max(args.batches)) as subject:
        session = Session("latency", args, subject)
        floor = floor_of(subject, args.device)
        with session.engine() as engine:
            session.measure(engine, measurements, floor=floor)
        return session.finish(METHOD, str(floor))
