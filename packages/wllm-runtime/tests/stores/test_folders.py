"""Folders of model files: LM Studio's and those of the user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from wllm_runtime.stores import StoredModel, find, stored_models

Lister = Callable[..., dict[str, StoredModel]]


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")


@pytest.mark.parametrize("place", [(".lmstudio", "models"), (".cache", "lm-studio", "models")])
def test_lm_studio(place: tuple[str, ...], home: Path, list_models: Lister) -> None:
    root = home.joinpath(*place)
    fill(root, "pub/repo-GGUF/small-Q4_K_M.gguf", "pub/repo-GGUF/mmproj-model-f16.gguf", "pub/repo-GGUF/README.md")
    fill(root, "pub/mlx/config.json", "pub/mlx/model.safetensors", "pub/other/config.json", "pub/x/half.gguf.part")
    models = list_models()
    assert {name: (model.format, model.num_bytes) for name, model in models.items()} == {
        "pub/repo-GGUF/small-Q4_K_M.gguf": ("gguf", 5),
        "pub/mlx": ("safetensors", 10),
    }
    assert models["pub/repo-GGUF/small-Q4_K_M.gguf"].path == root / "pub" / "repo-GGUF" / "small-Q4_K_M.gguf"
    assert {model.source for model in models.values()} == {"lm-studio"}


def test_the_folder_that_lm_studio_was_told(home: Path, tmp_path: Path, list_models: Lister) -> None:
    fill(tmp_path / "D диск", "pub/repo/a.gguf")
    fill(home / ".lmstudio" / "models", "pub/repo/b.gguf")
    settings = home / ".lmstudio" / "settings.json"
    settings.write_text(json.dumps({"downloadsFolder": str(tmp_path / "D диск")}), encoding="utf-8")
    assert set(list_models()) == {"pub/repo/a.gguf", "pub/repo/b.gguf"}
    settings.write_text(json.dumps({"downloadsFolder": str(home / ".lmstudio" / "models")}), encoding="utf-8")
    assert set(list_models()) == {"pub/repo/b.gguf"}
    settings.write_text("[damaged", encoding="utf-8")
    assert set(list_models()) == {"pub/repo/b.gguf"}


def test_backslashes_are_taken_for_slashes(home: Path) -> None:
    fill(home / ".lmstudio" / "models", "pub/repo/a.gguf")
    assert find("pub\\repo\\A.gguf", print) is not None


def test_parts_of_a_file_are_one_model(tmp_path: Path, list_models: Lister) -> None:
    fill(tmp_path / "own", *(f"big-0000{part}-of-00003.gguf" for part in (1, 2, 3)), "cut-00002-of-00002.gguf")
    models = list_models(tmp_path / "own")
    assert set(models) == {"big-00001-of-00003.gguf", "cut-00002-of-00002.gguf"}
    whole, cut = models["big-00001-of-00003.gguf"], models["cut-00002-of-00002.gguf"]
    assert (whole.num_bytes, whole.format, whole.note, whole.source) == (15, "gguf", "3 parts", "folder")
    assert (cut.format, cut.note) == ("incomplete", "1 of 2 parts")


def test_a_folder_that_is_a_model_itself(tmp_path: Path, list_models: Lister) -> None:
    fill(tmp_path / "my model", "config.json", "model.safetensors", "deep/er/UPPER.GGUF")
    models = list_models(tmp_path / "my model")
    assert models["my model"].path == tmp_path / "my model"
    assert models["deep/er/UPPER.GGUF"].format == "gguf"
    fill(tmp_path / "cut", "config.json", "model-00002-of-00003.safetensors")
    assert list_models(tmp_path / "cut")["cut"].format == "incomplete"


def test_a_file_that_has_gone_is_told_and_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "own", "a.gguf", "b.gguf")
    plain = Path.stat

    def stat(self: Path, **options: bool) -> object:
        if self.name == "a.gguf":
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return plain(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    troubles: list[str] = []
    assert [model.name for model in stored_models(troubles.append, [tmp_path / "own"])] == ["b.gguf"]
    assert len(troubles) == 1 and "a.gguf" in troubles[0]
