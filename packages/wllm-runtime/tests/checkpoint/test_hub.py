"""Downloads, against a small hub of our own on the loopback interface."""

from __future__ import annotations

import hashlib
import http.server
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.utils import WeakFileLock

from wllm_runtime.checkpoint import CheckpointError, DamagedCheckpoint, DownloadFailed, ModelNotFound, open_checkpoint
from wllm_runtime.checkpoint.hub import download
from wllm_runtime.checkpoint.sentence_modules import read_modules
from wllm_runtime.stores.download_record import is_own, recorded

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves the files of one model as "org/tiny"; `break_after` cuts the first download of a file after that many
    bytes, `requests` lists (method, file, range)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.break_after: dict[str, int] = {}
        self.status = 200
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.server, self.path.split("?")[0]
        if hub.status != 200:
            return self.fail(hub.status, "GatedRepo" if hub.status == 403 else "RepoNotFound")
        if not re.match(r"/(api/models/)?org/tiny/", path + "/"):
            return self.fail(401, "RepoNotFound")
        if "revision/nowhere" in path:
            return self.fail(404, "RevisionNotFound")
        if path.startswith("/api/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.files.items()
            ]
            info = {"id": "org/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in hub.files]}
            return self.send(json.dumps(tree if "/tree/" in path else info).encode())
        name = path.split(f"/resolve/{COMMIT}/")[1]
        hub.requests.append((self.command, name, self.headers.get("Range")))
        return self.send(hub.files[name], name)

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, data: bytes, name: str | None = None) -> None:
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        end = int(asked[2]) + 1 if asked and asked[2] else len(data)
        body = data[start:end]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.server.break_after.pop(name, None) if name and len(body) > 1 else None
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    server.files = {path.name: path.read_bytes() for path in model_dir.iterdir()}
    server.files |= {
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"again",
        "onnx/model.safetensors": b"other",
        "README.md": b"words",
    }
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "Кэш hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS_WARNING", True)  # the downloads of others would warn
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fetched(hub: Hub) -> set[str]:
    return {name for method, name, _ in hub.requests if method == "GET"}


def test_a_hub_id_opens(hub: Hub, model_dir: Path) -> None:
    checkpoint = open_checkpoint("org/tiny")
    assert checkpoint.weights is not None
    local = open_checkpoint(model_dir).weights
    assert local is not None
    for name in local.names():
        assert checkpoint.weights.read(name).equal(local.read(name))
    assert checkpoint.tokenizer_json == (model_dir / "tokenizer.json").read_text(encoding="utf-8")


def test_only_what_is_needed_is_fetched(hub: Hub) -> None:
    download("org/tiny")
    assert fetched(hub) == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}


MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]


def test_folders_of_modules_are_fetched(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files |= {
        "modules.json": json.dumps(MODULES).encode(),
        "1_Pooling/config.json": b'{"pooling_mode": "cls"}',
        "2_Dense/config.json": b"{}",
        "2_Dense/model.safetensors": b"weights",
        "2_Dense/pytorch_model.bin": b"pickle",
    }
    folder = download("org/tiny")
    inside = {name for name in fetched(hub) if "/" in name}
    assert inside == {"1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"}
    assert read_modules(folder).pooling == "cls"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert download("org/tiny") == folder


def test_a_transformer_in_a_folder_is_fetched_with_its_tokenizer(hub: Hub) -> None:
    modules = [{"path": "0_Transformer", "type": "x.Transformer"}, *MODULES[1:2]]
    names = ("config.json", "vocab.txt", "sentence_bert_config.json", "model.safetensors", "pytorch_model.bin")
    hub.files |= {f"0_Transformer/{name}": b"{}" for name in names}
    hub.files |= {"modules.json": json.dumps(modules).encode(), "1_Pooling/config.json": b'{"pooling_mode": "cls"}'}
    folder = download("org/tiny")
    assert {path.name for path in read_modules(folder).transformer.iterdir()} == set(names[:-1])


def test_modules_elsewhere_are_refused(hub: Hub) -> None:
    hub.files["modules.json"] = json.dumps([{"path": "../up", "type": "x.Pooling"}]).encode()
    with pytest.raises(DamagedCheckpoint, match="no folder's name"):
        download("org/tiny")


def test_dummy_loading_fetches_no_weights(hub: Hub) -> None:
    assert open_checkpoint("org/tiny", load_format="dummy").weights is None
    assert "model.safetensors" not in fetched(hub) and "config.json" in fetched(hub)


def test_the_second_start_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = download("org/tiny")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert download("org/tiny") == first


def test_a_broken_download_goes_on_where_it_stopped(hub: Hub, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # what is kept is whole chunks
    hub.break_after = {"model.safetensors": 10_000}
    try:
        directory = download("org/tiny")
    except DownloadFailed as error:
        assert "start again to go on" in str(error)
        directory = download("org/tiny")
    assert (directory / "model.safetensors").read_bytes() == (model_dir / "model.safetensors").read_bytes()
    assert not hub.break_after
    ranges = [asked for method, name, asked in hub.requests if method == "GET" and name == "model.safetensors"]
    assert len(ranges) == 2 and ranges[1] is not None and not ranges[1].startswith("bytes=0-")


def test_without_the_right_to_link(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """R45: as on a Windows account that may not make links; several files are fetched at a time."""

    def refuse(*_: object, **__: object) -> None:
        error = OSError("A required privilege is not held by the client")
        error.winerror = 1314  # type: ignore[attr-defined,unused-ignore]
        raise error

    monkeypatch.setattr(os, "symlink", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_SYMLINKS_WARNING", False)
    with caplog.at_level(logging.INFO):
        checkpoint = open_checkpoint("org/tiny")
    assert checkpoint.weights is not None and len(list(checkpoint.weights.names())) > 10
    assert not any(path.is_symlink() for path in checkpoint.path.iterdir())
    assert caplog.text.count("symbolic link") == 1
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]  # the hub client's own


def test_unknown_model(hub: Hub) -> None:
    with pytest.raises(ModelNotFound, match=r"'org/missing'"):
        open_checkpoint("org/missing")


def test_unknown_revision(hub: Hub) -> None:
    with pytest.raises(ModelNotFound, match=r"'org/tiny' at revision 'nowhere'"):
        open_checkpoint("org/tiny", revision="nowhere")


def test_gated_model_says_what_to_do(hub: Hub) -> None:
    hub.status = 403
    with pytest.raises(DownloadFailed, match=r"org/tiny.*gated.*HF_TOKEN"):
        open_checkpoint("org/tiny")


def test_a_hub_that_fails(hub: Hub) -> None:
    hub.status = 404
    with pytest.raises(CheckpointError, match="org/tiny"):
        open_checkpoint("org/tiny")


def test_offline_and_nothing_cached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadFailed, match=r"org/tiny.*[^.]\. Check the network, proxy and HF_HUB_OFFLINE\.$"):
        open_checkpoint("org/tiny")


def test_a_model_of_gguf_files_only(hub: Hub) -> None:
    hub.files = {"tiny.gguf": b"GGUF", "README.md": b"words"}
    with pytest.raises(ModelNotFound, match=r"no config\.json.*GGUF"):
        open_checkpoint("org/tiny")
    assert fetched(hub) == set()


def test_a_full_disk(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub.file_download, "http_get", refuse)
    with pytest.raises(DownloadFailed, match=r"is full.*HF_HOME"):
        download("org/tiny")


def repository(hub: Hub) -> Path:
    return Path(huggingface_hub.constants.HF_HUB_CACHE, "models--org--tiny")


@pytest.mark.parametrize("links", [True, False])
def test_what_was_downloaded_is_ours(links: bool, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        monkeypatch.setattr(huggingface_hub.file_download, "are_symlinks_supported", lambda folder=None: False)
    hub.files |= {"modules.json": json.dumps(MODULES).encode(), "1_Pooling/config.json": b'{"pooling_mode": "cls"}'}
    download("org/tiny")
    assert is_own(repository(hub))
    download("org/tiny")
    assert is_own(repository(hub))


def test_what_others_downloaded_is_not_ours(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub.snapshot_download("org/tiny", allow_patterns=["config.json"])
    download("org/tiny")
    assert not is_own(repository(hub))
    huggingface_hub.snapshot_download("org/tiny")
    download("org/tiny")
    assert not is_own(repository(hub))


def test_a_wholly_cached_model_of_others_gets_no_record(hub: Hub) -> None:
    huggingface_hub.snapshot_download("org/tiny")
    before = sorted(path.name for path in repository(hub).iterdir())
    download("org/tiny")
    assert sorted(path.name for path in repository(hub).iterdir()) == before


def test_what_others_add_to_ours_is_not_ours(hub: Hub) -> None:
    download("org/tiny")
    huggingface_hub.snapshot_download("org/tiny", allow_patterns=["README.md"])
    assert not is_own(repository(hub))
    download("org/tiny")
    assert not is_own(repository(hub))


@pytest.mark.parametrize("others", [False, True])
def test_what_a_killed_download_brought_is_ours(others: bool, hub: Hub) -> None:
    if others:
        huggingface_hub.snapshot_download("org/tiny", allow_patterns=["config.json"])
    killed = recorded(repository(hub))
    killed.__enter__()
    huggingface_hub.snapshot_download("org/tiny", allow_patterns=["config.json", "tokenizer.json"])
    del killed  # nothing after it ran
    assert is_own(repository(hub)) is not others
    download("org/tiny")
    assert is_own(repository(hub)) is not others


def test_parts_that_a_killed_download_left_are_deleted(hub: Hub) -> None:
    cache = repository(hub).parent
    blobs, locks = repository(hub) / "blobs", cache / ".locks" / repository(hub).name
    names = ("old.00000000.incomplete", "etag.incomplete", "cut.0123abcd.incomplete", "busy.0123abcd.incomplete")
    blobs.mkdir(parents=True)
    (blobs / names[0]).write_bytes(b"somebody else's, from before")
    killed = recorded(repository(hub))
    killed.__enter__()
    for name in names[1:]:
        (blobs / name).write_bytes(b"1234")
    locks.mkdir(parents=True)
    with WeakFileLock(locks / "busy.lock"):  # as another download holds it
        download("org/tiny")
    assert sorted(path.name for path in blobs.glob("*.incomplete")) == sorted({*names} - {names[2]})


def test_an_id_that_is_not_there_leaves_nothing(hub: Hub) -> None:
    with pytest.raises(ModelNotFound):
        download("org/missing")
    assert not Path(huggingface_hub.constants.HF_HUB_CACHE, "models--org--missing").exists()


def test_a_record_that_cannot_be_written_stops_nothing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refuse)
        assert (download("org/tiny") / "config.json").is_file()
    assert not is_own(repository(hub))
