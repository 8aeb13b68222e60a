"""The `models` command of the command line. What it needs is imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from wllm.console import complain, say, size_text

if TYPE_CHECKING:
    from wllm_runtime.stores import StoredModel

_EPILOG = """examples:
  wllm models list                               of the hub's cache, Ollama, LM Studio
  wllm models list --folder D:\\models            and of a folder of yours
  wllm models pull Qwen/Qwen2.5-0.5B-Instruct    fetch a model, to serve it later
  wllm models path llama3.2                      where its file lies
  wllm models rm Qwen/Qwen2.5-0.5B-Instruct      delete it, if wLLM downloaded it"""


def add_models(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `models` with its commands."""
    models = commands.add_parser(
        "models",
        help="models on this disk: list, pull, rm, path",
        description="Models on this disk, whoever put them there.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = models.add_subparsers(dest="models_command", metavar="COMMAND", required=True)
    listing = below.add_parser("list", help="show name, size, format and owner of each")
    _add_folder(listing)
    listing.add_argument("--json", action="store_true", help="print one JSON document, with the paths")
    listing.set_defaults(run=_list)
    pull = below.add_parser("pull", help="fetch a model from the hub, as `wllm serve` does")
    pull.add_argument("name", metavar="NAME", help="hub id, such as Qwen/Qwen2.5-0.5B-Instruct")
    pull.add_argument("--revision", metavar="NAME", help="branch, tag or commit on the hub (default: main)")
    pull.set_defaults(run=_pull)
    remove = below.add_parser("rm", help="delete a model that wLLM downloaded; others are refused")
    remove.add_argument("name", metavar="NAME", help="name as `wllm models list` shows it")
    _add_folder(remove)
    remove.set_defaults(run=_remove)
    path = below.add_parser("path", help="print where a model lies")
    path.add_argument("name", metavar="NAME", help="name as `wllm models list` shows it")
    _add_folder(path)
    path.set_defaults(run=_path)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder to look into too; repeatable",
    )


def _list(args: argparse.Namespace) -> int:
    from wllm.models.listing import json_listing, table
    from wllm_runtime.stores import places, stored_models

    folders = _checked(args.folder)
    models = sorted(stored_models(complain, folders), key=lambda model: model.name.casefold())
    if args.json:
        say(json_listing(models))
    elif models:
        say(table(models))
    else:
        complain("There are no models in these folders:")
        complain("\n".join(f"  {place}" for place in places(folders)))
        complain("`wllm models pull ORGANISATION/NAME` fetches one from the hub.")
    return 0


def _pull(args: argparse.Namespace) -> int:
    from wllm.interrupts import ending_interrupts
    from wllm_runtime.checkpoint import locate

    with ending_interrupts("wllm models pull: stopped. Files that arrived wholly are kept; pull again to go on."):
        path = locate(args.name, revision=args.revision)
    revision = f" --revision {args.revision}" if args.revision else ""
    say(f"{args.name} is in {path}\nserve it: wllm serve {args.name}{revision}")
    return 0


def _remove(args: argparse.Namespace) -> int:
    from wllm_runtime.stores import remove

    model = _named(args)
    remove(model)
    say(f"deleted {model.name}, {size_text(model.num_bytes)}")
    return 0


def _path(args: argparse.Namespace) -> int:
    say(str(_named(args).path))
    return 0


def _named(args: argparse.Namespace) -> StoredModel:
    from wllm_runtime import StoreError
    from wllm_runtime.stores import find, near

    folders = _checked(args.folder)
    if model := find(args.name, complain, folders):
        return model
    tip = ", ".join(near(args.name, lambda _: None, folders))
    raise StoreError(
        f"No model here is called {args.name!r}. {f'Near it: {tip}. ' if tip else ''}`wllm models list` shows all."
    )


def _checked(folders: list[Path]) -> list[Path]:
    from wllm_runtime import StoreError

    for folder in folders:
        if not folder.is_dir():
            raise StoreError(f"--folder {folder} is no folder that can be read. Check the path.")
    return [folder.resolve() for folder in folders]
