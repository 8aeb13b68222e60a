"""The command line: quick, torch-free help, flags that mirror the engine's settings, errors without a traceback."""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wllm.cli import build_parser, main
from wllm.flags import add_engine_flags, engine_settings
from wllm.serve import ServeOptions, api_keys
from wllm.served_models import served_name
from wllm_api.tools import REASONING_PARSERS, TOOL_PARSERS
from wllm_runtime import EngineConfig


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wllm", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, **environment}, timeout=120
    )


def test_help_names_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "serve" in done.stdout and "chat" in done.stdout


@pytest.mark.parametrize("module", ["wllm", "wllm.cli", "wllm.serve", "wllm_api.app", "wllm_sched", "wllm_cache"])
def test_import_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; assert not {{'torch', 'transformers'}} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_parsing_help_imports_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import wllm.cli; wllm.cli.build_parser().format_help();"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - sys.stdlib_module_names - {'wllm'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_help_names_every_parser() -> None:
    text = " ".join(run("serve", "--help").stdout.split())
    for flag, known in (("--tool-parser", TOOL_PARSERS), ("--reasoning-parser", REASONING_PARSERS)):
        told = text.rpartition(f"{flag} NAME")[2].partition("(default")[0].partition(": ")[2]
        assert set(told.strip().split(", ")) == set(known) - {"auto"}


@pytest.mark.parametrize("command", ["serve", "chat", "bench latency", "bench throughput", "bench profile"])
def test_a_wrong_flag_is_told_in_two_lines(command: str) -> None:
    done = run(*command.split(), "--max-num-seqs", "many")
    assert done.returncode == 2
    models = "[MODEL ...]" if command == "serve" else "[MODEL]"
    assert done.stderr.splitlines() == [
        f"usage: wllm {command} {models} [flags]",
        f"wllm {command}: error: argument --max-num-seqs: invalid int value: 'many'",
    ]


@pytest.mark.parametrize("command", ["", "serve", "chat", "bench latency", "bench serve"])
def test_an_unknown_flag_is_told_with_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([*command.split(), "--tensor-parallel-size=2"])
    assert done.value.code == 2
    words = f"wllm {command}".strip()
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{words} does not know --tensor-parallel-size=2; `{words} --help`" in last


def test_flags_mirror_the_engine_settings() -> None:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    defaults = {"model": "any", **engine_settings(parser.parse_args([]))}
    assert EngineConfig(**defaults) == EngineConfig(model="any")
    assert set(defaults) == {field.name for field in dataclasses.fields(EngineConfig)}


def test_every_flag_reaches_the_engine_settings() -> None:
    arguments = ["--max-model-len", "77", "--no-enable-prefix-caching", "--dtype", "float32", "--seed", "3"]
    sampling = ["--override-generation-config", '{"temperature": 0.7}']
    args = build_parser().parse_args(["serve", "m", *arguments, *sampling])
    config = EngineConfig(model=args.model, **engine_settings(args))
    assert config.override_generation_config == {"temperature": 0.7}
    assert (config.max_model_len, config.enable_prefix_caching, config.dtype, config.seed) == (77, False, "float32", 3)


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: wllm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "no/such/folder.gguf", "--port", "0"), "no/such/folder.gguf"),
        (("serve", "--max-model-len", "0"), "max_model_len must be a whole number of at least 1, got 0"),
        (("serve", "--host", "0.0.0.0"), "--api-key"),
        (("serve", "--override-generation-config", '{"beams": 4}'), "unknown names beams"),
        (("chat", "no/such/folder.gguf"), "no/such/folder.gguf"),
    ],
)
def test_errors_are_one_message(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments, HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_the_console_cannot_show_is_replaced() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from wllm.console import use_utf8, say; use_utf8(); say('\\u2713 \\U0001fae0')"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252:strict", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 0
    assert done.stdout.decode("utf-8").strip() == "\u2713 \U0001fae0"


def test_name_in_the_api(tmp_path: Path) -> None:
    (tmp_path / "my model").mkdir()
    assert served_name("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert served_name(str(tmp_path / "my model")) == "my model"
    assert served_name(str(tmp_path / "small.Q4_1.gguf")) == "small.Q4_1"


def test_version() -> None:
    done = run("--version")
    assert done.returncode == 0 and done.stdout.startswith("wllm ")


@pytest.mark.parametrize("text", ["[]", "{", '{"temperature": "hot"}'])
def test_sampling_that_is_no_json_object_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--override-generation-config", text])
    assert "is not a JSON object of numbers" in capsys.readouterr().err


def keys_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, ...]:
    """The API keys with which `wllm serve` would start its server."""
    seen: list[ServeOptions] = []
    monkeypatch.setattr("wllm.serve.serve", lambda models, options: seen.append(options) or 0)
    assert main(["serve", *arguments]) == 0
    return api_keys(seen[0])


def test_keys_of_flags_file_and_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("third\n# no key\nfourth\n", encoding="utf-8")
    monkeypatch.setenv("WLLM_API_KEY", "fifth")
    assert keys_of(monkeypatch) == ("fifth",)
    given = ("--api-key", "first", "--api-key", "second", "--api-key-file", str(file))
    assert keys_of(monkeypatch, *given) == ("first", "second", "third", "fourth")
    monkeypatch.delenv("WLLM_API_KEY")
    assert keys_of(monkeypatch) == ()


@pytest.mark.parametrize("arguments", [("--api-key", ""), ("--api-key-file", "no/such/file")])
def test_keys_that_open_nothing_are_refused(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "any/model", *arguments]) == 1
    assert "key" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "-1", "fast"])
def test_rate_limit_is_a_count(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--rate-limit", rate])
    assert "whole number of at least 1" in capsys.readouterr().err
