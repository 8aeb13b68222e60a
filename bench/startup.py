"""Seconds from `wllm serve` to ready, and to the first answer: SmolLM2-135M on the CPU, a fresh process each time."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from time import perf_counter

from _common import MODEL, machine, print_table, spread

LIMIT_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_once() -> tuple[float, float]:
    """(seconds to ready, seconds to the end of a one-token answer)."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    start = perf_counter()
    command = [sys.executable, "-m", "wllm", "serve", MODEL, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(url):
            if server.poll() is not None or perf_counter() - start > LIMIT_S:
                raise RuntimeError(f"the server did not get ready; exit code {server.poll()}")
            time.sleep(0.02)
        ready = perf_counter() - start
        models = json.load(urllib.request.urlopen(f"{url}/v1/models"))
        body = json.dumps({"model": models["data"][0]["id"], "prompt": "Hello", "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request).read()
        return ready, perf_counter() - start
    finally:
        server.terminate()
        server.wait(20)


def is_ready(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/health", timeout=1).status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="starts (default: 3)")
    args = parser.parse_args()
    ready, answered = zip(*(start_once() for _ in range(args.repeats)), strict=True)
    print_table(
        f"Start-up in seconds, median of {args.repeats} (range); {machine()}",
        ("until", "seconds"),
        (("ready", spread(ready)), ("first answer", spread(answered))),
    )


if __name__ == "__main__":
    main()
