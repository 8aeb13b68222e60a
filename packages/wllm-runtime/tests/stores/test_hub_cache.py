"""The hub's cache: one model for each id, GGUF files one by one; deleting what is ours, and only that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from wllm_runtime import StoreError
from wllm_runtime.stores import StoredModel, remove, stored_models

Lister = Callable[..., dict[str, StoredModel]]
Writer = Callable[..., Path]


def make_own(snapshot: Path) -> None:
    """A record that says that wLLM downloaded what is in the snapshot now."""
    repository = snapshot.parent.parent
    files = [path.relative_to(snapshot.parent).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    record = json.dumps({"files": files, "before": None})
    (repository / "wllm.json").write_text(record, encoding="utf-8")


def test_formats(add_cached: Writer, home: Path, list_models: Lister) -> None:
    plain = add_cached("org/plain", "config.json", "model.safetensors")
    files = add_cached("org/files", "a.gguf", "deep/b.gguf", "README.md")
    add_cached("org/pickled", "config.json", "pytorch_model.bin")
    add_cached("org/data", "model.safetensors", kind="dataset")
    half = add_cached("org/half", "config.json")
    (half.parent.parent / "blobs").mkdir()
    (half.parent.parent / "blobs" / "abc.incomplete").write_bytes(b"1")
    parts = add_cached("org/parts", "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors")
    whole = add_cached("org/whole", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    (whole.parent.parent / "blobs").mkdir()
    (whole.parent.parent / "blobs" / "leftover.incomplete").write_bytes(b"1")
    models = list_models()
    assert models["org/parts"].note == "1 of its files of weights missing"
    assert {name: (model.path, model.format, model.num_bytes) for name, model in models.items()} == {
        "org/plain": (plain, "safetensors", 10),
        "org/files/a.gguf": (files / "a.gguf", "gguf", 5),
        "org/files/deep/b.gguf": (files / "deep" / "b.gguf", "gguf", 5),
        "org/pickled": (models["org/pickled"].path, "other", 10),
        "org/half": (half, "incomplete", 5),
        "org/parts": (parts, "incomplete", 10),
        "org/whole": (whole, "safetensors", 10),
    }
    assert {model.source for model in models.values()} == {"hub"}


def test_the_default_revision_is_the_path(add_cached: Writer, list_models: Lister) -> None:
    main = add_cached("org/two", "config.json", "model.safetensors")
    add_cached("org/two", "config.json", "model.safetensors", commit="f" * 40, ref="newer")
    (model,) = list_models().values()
    assert (model.path, model.num_bytes) == (main, 20)


def test_damage_is_told_and_hides_no_other(add_cached: Writer, home: Path) -> None:
    add_cached("org/sound", "model.safetensors")
    (home / "hub" / "models--org--empty").mkdir()
    troubles: list[str] = []
    assert [model.name for model in stored_models(troubles.append)] == ["org/sound"]
    assert len(troubles) == 1 and "models--org--empty" in troubles[0]


def test_what_is_ours_is_deleted_and_no_copy_of_it(add_cached: Writer, list_models: Lister) -> None:
    ours = add_cached("org/ours", "config.json", "model.safetensors")
    add_cached("org/ours", "model.safetensors", commit="f" * 40, ref="other")
    # A copy of a repository on the hub has its commits.
    copies = [add_cached(f"org/copy{number}", "config.json", "model.safetensors") for number in range(4)]
    make_own(ours)
    record = ours.parent.parent / "wllm.json"
    files = [*json.loads(record.read_text(encoding="utf-8"))["files"], f"{'f' * 40}/model.safetensors"]
    record.write_text(json.dumps({"files": files, "before": None}), encoding="utf-8")
    model = list_models()["org/ours"]
    assert model.own
    remove(model)
    assert not ours.parent.parent.exists()
    assert all((copy / "model.safetensors").is_file() for copy in copies)
    assert "org/ours" not in list_models()


@pytest.mark.parametrize("record", ["", "[]", '{"files": 5}', '{"files": [], "before": null}'])
def test_what_has_no_record_is_kept(record: str, add_cached: Writer, list_models: Lister) -> None:
    snapshot = add_cached("org/others", "config.json", "model.safetensors")
    if record:
        (snapshot.parent.parent / "wllm.json").write_text(record, encoding="utf-8")
    model = list_models()["org/others"]
    with pytest.raises(StoreError, match=r"org/others was not deleted.*hf cache rm model/org/others"):
        remove(model)
    assert (snapshot / "model.safetensors").is_file()


def test_what_others_added_keeps_all(add_cached: Writer, list_models: Lister) -> None:
    snapshot = add_cached("org/shared", "config.json", "model.safetensors")
    make_own(snapshot)
    assert list_models()["org/shared"].own
    add_cached("org/shared", "vocab.json")
    with pytest.raises(StoreError, match="other programs"):
        remove(list_models()["org/shared"])
    assert (snapshot / "model.safetensors").is_file()


def test_a_file_in_use_is_told(add_cached: Writer, list_models: Lister, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = add_cached("org/busy", "model.safetensors")
    make_own(snapshot)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "The process cannot access the file because it is being used", str(path))

    monkeypatch.setattr("huggingface_hub.utils._cache_manager.shutil.rmtree", refuse)
    with pytest.raises(StoreError, match="in use"):
        remove(list_models()["org/busy"])


@pytest.mark.parametrize(
    ("source", "words"),
    [("ollama", "`ollama rm tiny:latest`"), ("lm-studio", "LM Studio's"), ("folder", "a folder of yours")],
)
def test_other_owners_are_named(source: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(StoreError, match=words):
        remove(StoredModel("tiny:latest", path, 4, "gguf", source))  # type: ignore[arg-type]
    assert path.is_file()
