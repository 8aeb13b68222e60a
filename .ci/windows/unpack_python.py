"""Unpack python.org's embeddable Windows build as an ordinary python.exe: `unpack_python.py ARCHIVE TAG TARGET`."""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path


def main(archive: str, tag: str, target: str) -> None:
    """Fill the folder `target` with the build `tag` (such as cp313) of the package's archive."""
    home = Path(target)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(archive) as package:
            if hasattr(tarfile, "data_filter"):  # from 3.11.4 on, and Debian has 3.11.2
                package.extraction_filter = tarfile.data_filter
            package.extractall(folder)
        with zipfile.ZipFile(next(folder.rglob("data.zip"))) as data:
            data.extractall(folder)
        shutil.copytree(folder / tag, home, dirs_exist_ok=True)
    (home / "Lib" / "site-packages").mkdir(parents=True, exist_ok=True)
    # Such a file means isolated mode: no PYTHON* variables, no script's folder on the path.
    for path in home.glob("*._pth"):
        path.unlink()
    # platform.platform() asks WMI, which crashes under Wine; Python copes without.
    (home / "_wmi.pyd").unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
