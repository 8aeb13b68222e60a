"""R43: paths that are hard to open: long ones, links to folders, and the forms that Windows alone has."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wllm_runtime.checkpoint import ModelNotFound, open_checkpoint, opening

DEEP = ["папка с длинным именем " + "x" * 40] * 5
on_windows = pytest.mark.skipif(sys.platform != "win32", reason="a form of Windows")


def assert_opens(path: Path | str) -> None:
    weights = open_checkpoint(path).weights
    assert weights is not None and weights.read("model.norm.weight").shape == (32,)
    weights.close()


@pytest.mark.parametrize("gguf", [False, True])
def test_more_than_260_characters(
    gguf: bool, model_dir: Path, make_model: Any, write_gguf: Any, tmp_path: Path
) -> None:
    """On Windows where it has long paths on, as Wine has."""
    path = tmp_path.joinpath(*DEEP, "m.gguf" if gguf else "m")
    path.parent.mkdir(parents=True)
    shutil.move(write_gguf(make_model()) if gguf else model_dir, path)
    assert len(str(path)) > 260
    assert_opens(path)


def test_a_link_to_a_folder(model_dir: Path, tmp_path: Path) -> None:
    """A junction on Windows, which needs no right, else a symbolic link."""
    link = tmp_path / "ссылка"
    if sys.platform == "win32":
        import _winapi

        try:
            _winapi.CreateJunction(str(model_dir), str(link))
        except OSError as error:
            pytest.skip(f"no junctions here, as with Wine 8: {error}")
    else:
        link.symlink_to(model_dir, target_is_directory=True)
    assert_opens(link)


@on_windows
@pytest.mark.parametrize("form", ["the drive's own folder", "slashes", "extended", "share"])
def test_every_form_of_windows(form: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_dir.parent)
    drive, rest = str(model_dir)[0], str(model_dir)[2:]
    path = {
        "the drive's own folder": f"{drive}:{model_dir.name}",
        "slashes": model_dir.as_posix(),
        "extended": f"\\\\?\\{model_dir}",
        "share": f"\\\\localhost\\{drive}${rest}",
    }[form]
    if form == "share" and not Path(path).exists():
        pytest.skip("this machine does not share its drives, or not with this user; Wine has no shares")
    assert_opens(path)


@pytest.mark.parametrize("length", [100, 300])
def test_a_missing_path_that_is_too_long_for_windows_is_told(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(Path.cwd() / "x").ljust(length, "x")
    monkeypatch.setattr(opening, "sys", SimpleNamespace(platform="win32"))
    with pytest.raises(ModelNotFound) as caught:
        open_checkpoint(path + ".gguf")
    assert path in str(caught.value)
    assert (f"The path has {length + 5} characters" in str(caught.value)) is (length > 260)
