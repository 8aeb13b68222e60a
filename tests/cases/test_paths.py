"""Models that are hard to find or to read, and consoles that cannot show what they hold.

Windows' own kinds of paths and its right to make links are tried as near as this system has them: the letters, the
lengths and the code page are real, a junction is a symbolic link elsewhere, the share and the drive are not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from cases.gguf_files import save_as_gguf
from cases.odd_model import CONSOLE, build_tokenizer, save_odd_model
from cases.requests import CHAT, HI, ask
from safetensors.numpy import load_file, save_file
from server.running_server import RunningServer

from wllm_runtime import EngineConfig
from wllm_runtime.engine import create_engine
from wllm_runtime.testing import generate


def wllm(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[bytes]:
    """The command on a console of Windows, whose output goes to a file."""
    command = [sys.executable, "-m", "wllm", *arguments]
    environment = {**os.environ, **CONSOLE, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, input=typed.encode(), capture_output=True, env=environment, timeout=120)


SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


def save_in_two_shards(folder: Path) -> dict[str, str]:
    """Save the odd model to `folder`, as large models come; the file of each tensor."""
    save_odd_model(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: SHARDS[number % 2] for number, name in enumerate(tensors)}
    for shard in SHARDS:
        save_file({name: tensors[name] for name in tensors if files[name] == shard}, folder / shard)
    write_index(folder, files)
    return files


def write_index(folder: Path, files: dict[str, str]) -> None:
    index = json.dumps({"weight_map": files})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def start_incomplete(tmp_path: Path, folder: Path) -> str:
    """The log of a server that must not start with this model."""
    with RunningServer(tmp_path, str(folder)) as starting:
        assert starting.process.wait(60) == 1
        text = starting.text()
    assert "ncomplete download?" in text
    assert "ready:" not in text and "Traceback" not in text
    return text


def test_r40_a_model_without_a_shard_is_never_served(tmp_path: Path) -> None:
    """sgl-project/sglang#32279"""
    folder = tmp_path / "odd"
    save_in_two_shards(folder)
    (folder / SHARDS[1]).unlink()
    assert SHARDS[1] in start_incomplete(tmp_path, folder)


@pytest.mark.parametrize("harm", ["half", "empty", "name"])
def test_r40_a_damaged_model_is_not_loaded(tmp_path: Path, harm: str) -> None:
    """sgl-project/sglang#32279: a cut shard, an empty one, and a tensor that the index alone has."""
    files = save_in_two_shards(tmp_path / "odd")
    second = tmp_path / "odd" / SHARDS[1]
    if harm == "name":
        write_index(tmp_path / "odd", {**files, "model.ghost.weight": SHARDS[1]})
    else:
        data = second.read_bytes()
        second.write_bytes(data[: len(data) // 2] if harm == "half" else b"")
    with pytest.raises(Exception, match=r"[Ii]ncomplete download\?") as caught:
        create_engine(EngineConfig(model=str(tmp_path / "odd"), num_kv_blocks=8))
    assert ("model.ghost.weight" if harm == "name" else SHARDS[1]) in str(caught.value)


def test_r40_a_model_in_two_shards_is_served_when_it_is_whole(tmp_path: Path) -> None:
    save_in_two_shards(tmp_path / "odd")
    engine = create_engine(EngineConfig(model=str(tmp_path / "odd"), num_kv_blocks=8))
    assert len(generate(engine, [5, 6], max_tokens=2, ignore_eos=True)) > 0
    engine.close()


def test_r42_a_gguf_file_without_merges_is_served(odd_folder: Path, tmp_path: Path) -> None:
    """ggml-org/llama.cpp#9309, huggingface/transformers#31844; a large vocabulary: `test_gguf_tokenizer.py`."""
    file = tmp_path / "маленькая Ä 日本.gguf"
    save_as_gguf(odd_folder, file)
    with RunningServer(tmp_path, str(file), environment=CONSOLE) as running:
        running.wait_ready()
        assert str(file) in running.text()
        with httpx.Client(base_url=running.url, timeout=60) as client:
            for text in ("  two spaces", "ÄÖ 龜 🫠", "\n\n", "<s>", "the hello"):
                assert ask(client, "/tokenize", prompt=text)["tokens"] == build_tokenizer().encode(text).ids
            ask(client, "/v1/completions", prompt="hello", max_tokens=2)


@pytest.mark.parametrize(("field", "shown"), [
    ({"tokenizer_ggml_model": "martian"}, "tokenizer.ggml.model is 'martian'"),
    ({"general_architecture": "martian"}, "general.architecture"),
])  # fmt: skip
def test_r42_a_name_that_is_not_known_is_told(
    odd_folder: Path, tmp_path: Path, field: dict[str, str], shown: str
) -> None:
    """ggml-org/llama.cpp#9309"""
    save_as_gguf(odd_folder, tmp_path / "x.gguf", **field)
    with pytest.raises(Exception, match="martian") as caught:
        create_engine(EngineConfig(model=str(tmp_path / "x.gguf")))
    assert shown in str(caught.value)


def test_r43_a_path_of_many_letters_is_served(odd: httpx.Client, odd_server: RunningServer, odd_folder: Path) -> None:
    """ggml-org/llama.cpp#18571, ggml-org/llama.cpp#5802"""
    ask(odd, CHAT, messages=HI, max_tokens=1)
    assert str(odd_folder) in odd_server.text()


@pytest.mark.parametrize("gguf", [False, True])
def test_r43_long_paths_are_read(odd_folder: Path, tmp_path: Path, gguf: bool) -> None:
    """ggml-org/llama.cpp#18571: more than 260 characters; links and forms of Windows: `checkpoint/test_paths.py`."""
    path = tmp_path.joinpath(*["папка с длинным именем " + "x" * 40] * 5, "m.gguf" if gguf else "m")
    path.parent.mkdir(parents=True)
    if gguf:
        save_as_gguf(odd_folder, path)
    else:
        save_odd_model(path)
    assert len(str(path)) > 260
    engine = create_engine(EngineConfig(model=str(path), num_kv_blocks=8))
    assert len(generate(engine, [5, 6], max_tokens=2, ignore_eos=True)) > 0
    engine.close()


def test_r43_a_path_that_is_not_there_is_shown_unharmed() -> None:
    """ggml-org/llama.cpp#18571; a share, a drive's own folder and others: `test_directory.py`."""
    path = "D:\\Загрузки\\my models\\small.gguf"
    done = wllm("chat", path)
    assert done.returncode == 1 and path in done.stderr.decode("utf-8") and b"Traceback" not in done.stderr


def test_r44_a_server_whose_log_is_a_file_writes_utf8(odd: httpx.Client, odd_server: RunningServer) -> None:
    """alibaizhanov/mengram#71: this server was started on such a console, with such a path."""
    ask(odd, CHAT, messages=[{"role": "user", "content": "🫠"}], max_tokens=1)
    assert "Загрузки Željko" in odd_server.text() and "ready:" in odd_server.text()
    assert "Error" not in odd_server.text() and "Traceback" not in odd_server.text()


def test_r44_a_chat_shows_what_it_can(odd_folder: Path) -> None:
    """alibaizhanov/mengram#71: a text from a pipe that the code page could not even decode, and odd characters back."""
    typed = "\ufeffこんにちは 🫠\nこ\nも\nさ\n/exit\n"
    done = wllm("chat", str(odd_folder), "--temperature", "1", "--max-tokens", "20", typed=typed)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    answers = done.stdout.decode("utf-8")
    assert len(answers.encode("cp1252", errors="ignore").decode("cp1252")) < len(answers)


@pytest.mark.parametrize("arguments", [
    ("--version",), ("doctor",),
    pytest.param(
        ("bench", "latency", "MODEL", "--batches", "1", "--prompt-len", "4", "--output-len", "4", "--repeats", "1",
         "--first-token-len", "8", "--prefill", "1x8"), marks=pytest.mark.full,
    ),
])  # fmt: skip
def test_r44_other_commands_write_utf8(odd_folder: Path, arguments: tuple[str, ...]) -> None:
    """alibaizhanov/mengram#71"""
    done = wllm(*(argument.replace("MODEL", str(odd_folder)) for argument in arguments))
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("utf-8") and b"Traceback" not in done.stderr
