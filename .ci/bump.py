"""Sets one version in every packages/*/pyproject.toml and in their `==` pins on each other.

    python .ci/bump.py VERSION [ROOT]

Standard library only, so that it runs anywhere. Writes all files or, when anything looks wrong, none.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?")


def bumped(text: str, names: set[str], version: str) -> str:
    """A pyproject.toml's text with `version`, also in its pins on `names`."""
    own = re.compile(r'(?m)^(version = ")[^"]+(")$')
    pins = re.compile(rf'("(?:{"|".join(map(re.escape, sorted(names)))})==)[^"]+(")')
    if len(own.findall(text)) != 1:
        raise SystemExit('bump: expected exactly one line `version = "..."` in each pyproject.toml')
    return pins.sub(rf"\g<1>{version}\g<2>", own.sub(rf"\g<1>{version}\g<2>", text))


def main(arguments: list[str]) -> None:
    """Bump, or exit with the reason."""
    if not arguments or not VERSION.fullmatch(arguments[0]):
        given = arguments[0] if arguments else "nothing"
        raise SystemExit(f"bump: wants a version such as 0.2.0 or 0.2.0rc1, got {given}: nox -s bump -- 0.2.0")
    root = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).parent.parent
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.glob("packages/*/pyproject.toml"))}
    names = {tomllib.loads(text)["project"]["name"] for text in texts.values()}
    after = {path: bumped(text, names, arguments[0]) for path, text in texts.items()}
    for path, text in after.items():
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"{path.parent.name}: {arguments[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
