"""The examples on the pages about single APIs run as they stand, but for the address and the model."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize(
    ("page", "output"), [("anthropic", r"(?s).+\nend_turn, \d+ tokens\n"), ("responses", r"(?s).+\n.+")]
)
def test_example(client: httpx.Client, page: str, output: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "http://127.0.0.1:8000" in block
    assert "Qwen/Qwen2.5-0.5B-Instruct" in block
    block = block.replace("http://127.0.0.1:8000", str(client.base_url)).replace(
        "Qwen/Qwen2.5-0.5B-Instruct", "scripted"
    )
    ran = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", block], capture_output=True, encoding="utf-8", timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(output, ran.stdout)


def test_every_series_of_the_metrics_has_a_row(client: httpx.Client) -> None:
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^# TYPE wllm:(\w+) ", client.get("/metrics").text, re.MULTILINE))
    assert "engine_steps_total" in shown
    assert sorted(name for name in shown if f"`{name}`" not in page and not name.endswith("_created")) == []
