"""`afm params set KEY=VALUE ...`: edit params.yaml, keeping its comments, only if the outcome is valid."""

import argparse
from io import StringIO
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import write_text
from afm.params.reading import parse_section, read_tree
from afm.params.root import Params
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm params`."""
    parser.add_argument("action", choices=["set"])
    parser.add_argument(
        "settings", nargs="+", metavar="KEY=VALUE", help="screen.seed=7; the value is YAML"
    )


def run(args: argparse.Namespace) -> int:
    """Change values that exist."""
    path = here().root / "params.yaml"
    set_params(path, args.settings)
    return 0


def set_params(path: Path, settings: list[str]) -> None:
    """Change values in a params file.

    Raises:
        UserError: a key does not exist, or the file would no longer be valid; then nothing is written.
    """
    yaml = _round_trip()
    tree = yaml.load(path.read_text(encoding="utf-8"))
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise UserError(f"{setting!r} is not KEY=VALUE")
        _set(tree, key, yaml.load(text), path.name)
    stream = StringIO()
    yaml.dump(tree, stream)
    draft = path.with_name(f".{path.name}.draft")
    write_text(draft, stream.getvalue())
    try:
        parse_section(read_tree(draft), Params, where=path.name)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _set(tree: Any, key: str, value: Any, where: str) -> None:
    *above, last = key.split(".")
    node = tree
    for part in [*above, last]:
        if not isinstance(node, dict) or part not in node:
            known = ", ".join(map(str, node)) if isinstance(node, dict) else "no keys"
            raise UserError(f"{where}: no key {key!r}: {part!r} is not among {known}")
        parent, node = node, node[part]
    parent[last] = value


def _round_trip() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    yaml.preserve_quotes = True
    yaml.representer.add_representer(
        type(None),
        lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null"),
    )
    return yaml
