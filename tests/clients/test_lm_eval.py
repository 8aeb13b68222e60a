"""lm-eval: likelihoods and generation over its `local-completions`, the server's tokenizer, tasks of a few rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients.tiny_task import ROWS, TASKS, write_tasks
from server.running_server import RunningServer

pytest.importorskip("lm_eval", reason="nox -s clients installs it")

import lm_eval
from lm_eval.tasks import TaskManager


@pytest.mark.parametrize("batch_size", [1, 4])
def test_all_rows_are_right(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = {
        "model": server.model(), "base_url": f"{server.url}/v1/completions", "tokenizer_backend": "remote",
        "batch_size": batch_size,
    }  # fmt: skip
    tasks = TaskManager(include_path=str(write_tasks(tmp_path)), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model="local-completions", model_args=arguments, tasks=list(TASKS), task_manager=tasks, bootstrap_iters=0
    )
    assert len(found["samples"]["tiny_choice"]) == len(ROWS)
    assert found["results"]["tiny_choice"]["acc,none"] == 1
    assert found["results"]["tiny_generate"]["exact_match,word"] == 1
