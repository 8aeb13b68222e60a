"""Every snippet of docs/clients.md does what it says: programs run, settings name the server and its model.

Those of packages that only `nox -s clients` installs are skipped elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from clients.snippets import MODEL, PAGE, URL, Snippet, node_folder, output_of, output_of_node, snippets
from clients.tiny_task import TASKS, write_tasks
from server.running_server import RunningServer

SETTINGS = {"json", "yaml", "toml", "ini"}
ALL = snippets()
# What the programs print: the answer to their question, or the object that they asked for.
PERSON = r"(?s).*name='.*' age=\d+.*"
OUTPUTS = {"LangChain": PERSON, "instructor": PERSON, "Pydantic AI": PERSON}
PARIS = r"(?s).*Paris.*"


def of(*languages: str) -> Any:
    return pytest.mark.parametrize("snippet", [one for one in ALL if one.language in languages], ids=str)


def test_every_snippet_is_tested() -> None:
    assert {one.language for one in ALL} == {"python", "javascript", "sh", *SETTINGS}
    assert len({one.heading for one in ALL}) >= 10


def test_every_address_is_the_server() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"http://[\w.]+(?::\d+)?", text)) == {URL, "http://host.docker.internal:8000"}


@of("python")
def test_python(server: RunningServer, snippet: Snippet) -> None:
    for package in re.findall(r"^(?:import|from) (\w+)", snippet.code, flags=re.MULTILINE):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: nox -s clients")
    assert MODEL in snippet.code and URL in snippet.code
    output = output_of([sys.executable, "-c", snippet.for_server(server)])
    assert re.fullmatch(OUTPUTS.get(snippet.heading, PARIS), output), output


@of("javascript")
def test_javascript(server: RunningServer, snippet: Snippet) -> None:
    if node_folder() is None:
        pytest.skip("needs Node and the openai package of npm: nox -s clients, where Node is installed")
    assert "Paris" in output_of_node(snippet.for_server(server), "page")


@of("sh")
def test_shell(server: RunningServer, snippet: Snippet, tmp_path: Path) -> None:
    command = shlex.split(snippet.for_server(server).replace("\\\n", " "))
    if command[0] == "curl":
        if shutil.which("curl") is None:
            pytest.skip("needs curl")
        assert json.loads(output_of([*command, "--silent"]))["choices"][0]["message"]["content"]
        return
    if find_spec("lm_eval") is None:
        pytest.skip("needs lm_eval: nox -s clients")
    # The task of the page is on the hub.
    command[command.index("--tasks") + 1] = TASKS[0]
    output = output_of([sys.executable, "-m", *command, "--include_path", write_tasks(tmp_path)])
    assert TASKS[0] in output


@of(*SETTINGS)
def test_settings(server: RunningServer, snippet: Snippet) -> None:
    urls, models = addressed(snippet.language, snippet.for_server(server))
    model = server.model()
    assert urls and models <= {model}
    for url in urls:
        base = url if url.endswith("/v1") else f"{url}/v1"
        listed = httpx.get(f"{base}/models").raise_for_status().json()["data"]
        assert [one["id"] for one in listed] == [model]


def addressed(language: str, text: str) -> tuple[set[str], set[str]]:
    """The addresses and the models that settings name."""
    read: Any = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads, "ini": _lines}[language]
    urls, models = set(), set()
    pending = list(read(text).items())
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += value.items()
        elif isinstance(value, list):
            pending += [(name, one) for one in value]
        elif str(value).startswith("http"):
            urls.add(value)
        elif re.search(r"(?i)(^|_)model$", name):
            models.add(value.removeprefix("hosted_vllm/"))
    return urls, models


def _lines(text: str) -> dict[str, str]:
    return dict(line.split("=", maxsplit=1) for line in text.splitlines())
