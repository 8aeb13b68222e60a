"""The README's example runs as it stands, but for the port."""

import re
import socket
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_example() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    ran = subprocess.run(
        [sys.executable, "-c", block.replace("8000", str(port))],
        capture_output=True, text=True, encoding="utf-8", timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r" I have read \d+ tokens, and their ids add up to \d+\.", ran.stdout)


def test_length() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 40
