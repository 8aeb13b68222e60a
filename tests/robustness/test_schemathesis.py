"""Schemathesis reads /openapi.json and sends what fits it and what does not, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from robustness.live_server import LiveServer

# Not: that whatever fits the schema is taken (fields may contradict each other), and that whatever does not is refused
# (a null is an absent field here).
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
)
LIMIT_S = 3000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("schemathesis")) as running:
        yield running


def run(server: LiveServer, folder: Path, phases: str, max_examples: int) -> None:
    """Run Schemathesis; fails the test with the end of its report."""
    command = [sys.executable, "-X", "utf8", "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    command += ["--checks", CHECKS, "--phases", phases, "--max-examples", str(max_examples), "--seed", "1"]
    command += ["--generation-database", "none", "--request-timeout", "30", "--no-color"]
    # It would end the engine, which is to live through all the others; tests/hosting of wllm-api has it.
    command += ["--exclude-path", "/sleep"]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "SCHEMATHESIS_HOOKS": "schemathesis_hooks"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=LIMIT_S)
    assert ran.returncode == 0, f"{ran.stdout[:20_000]}\n...\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    assert "Test cases:" in ran.stdout, ran.stdout
    server.check_alive()


def test_sample(server: LiveServer, tmp_path: Path) -> None:
    run(server, tmp_path, "fuzzing", 3)


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S + 60)
def test_all(server: LiveServer, tmp_path: Path) -> None:
    run(server, tmp_path, "examples,coverage,fuzzing", 200)
