"""The snippets of docs/clients.md, made to talk to a server of the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.running_server import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
URL = "http://127.0.0.1:8000"
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


@dataclass(frozen=True)
class Snippet:
    """A block of code below a heading."""

    heading: str
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.heading}: {self.language}"

    def for_server(self, server: RunningServer) -> str:
        """The code with the server's address and model."""
        return self.code.replace(URL, server.url).replace(MODEL, server.model())


def snippets() -> list[Snippet]:
    """All of the page, in order."""
    found = []
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading = section.splitlines()[0]
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        found += [Snippet(heading, language, code) for language, code in blocks]
    return found


def output_of(command: Sequence[str | Path]) -> str:
    """What a program printed; fails when it fails."""
    program = shutil.which(command[0])
    assert program is not None, command[0]
    # LiteLLM asks for a list of prices, lm-eval for data sets, unless they are told not to.
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    ran = subprocess.run(
        [program, *command[1:]], capture_output=True, encoding="utf-8", timeout=300, env={**os.environ, **offline}
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def node_folder() -> Path | None:
    """Where `nox -s clients` has installed the packages of npm; None elsewhere."""
    path = os.environ.get("NODE_PATH")
    return Path(path).parent if path and shutil.which("node") else None


def output_of_node(code: str, name: str) -> str:
    """What a module printed that imports packages of npm."""
    folder = node_folder()
    assert folder is not None
    script = folder / f"{name}.mjs"  # modules are looked for beside the script and above it
    script.write_text(code, encoding="utf-8")
    return output_of(["node", script])
