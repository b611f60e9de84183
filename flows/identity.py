"""The identity of a result: a hash of everything that can change it, and of nothing else."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.ids import content_id
from afm.params.reading import cut, parse_section, read_tree
from afm.params.root import Params as AllParams
from flows.hashing import Hasher
from flows.memory import Memory
from stages._closure import code_hashes
from stages._stage import Stage, cell_axes, flag, load_params, make_parser, path_fields

MOST_MENTIONS = 2000
"""Files of code of which is remembered what they mention: several versions of all. Every submit reads them [files]."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One stage command: what to run, from what, to where."""

    stage: Stage
    axes: Mapping[str, str]
    inputs: Mapping[str, Path]
    """By field name; an optional input that the cell lacks is left out."""
    outputs: Mapping[str, Path]

    @property
    def cell(self) -> str:
        """Name as DVC writes it, for instance `sft@mhqa-tiny`."""
        return "@".join(filter(None, (self.stage.name, "-".join(self.axes.values()))))

    def arguments(self, outputs: Mapping[str, Path]) -> list[str]:
        """Return the stage's flags, with other output paths."""
        words = [word for axis, value in self.axes.items() for word in (f"--{axis}", value)]
        for name, path in self.inputs.items():
            words += [flag(name, output=False), str(path)]
        for name, path in outputs.items():
            words += [flag(name, output=True), str(path)]
        return words


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingredients:
    """Everything that a result depends on."""

    stage: str
    axes: dict[str, str]
    deps: dict[str, str]
    """md5 as DVC knows it, by input field."""
    code: dict[str, str]
    """md5 by path."""
    params: dict[str, Any]
    """Resolved sections by dotted key."""
    constraints: str
    """md5 of the environment's constraints file."""

    @property
    def identity(self) -> str:
        """16 hex digits; the same wherever the same result is asked for."""
        return content_id({name: getattr(self, name) for name in self.__slots__})


def parse_request(words: Sequence[str]) -> Request:
    """Parse a stage's name and its own flags.

    Raises:
        UserError: there is no such stage.
    """
    stage = load_stage(words[0])
    args = vars(make_parser(stage).parse_args(words[1:]))
    inputs = {name: args[name] for name in path_fields(stage.inputs) if args[name] is not None}
    return Request(
        stage=stage,
        axes=cell_axes(stage, args),
        inputs=inputs,
        outputs={name: args[f"out_{name}"] for name in path_fields(stage.outputs)},
    )


def load_stage(name: str) -> Stage:
    """Import a stage's declaration.

    Raises:
        UserError: there is no such stage.
    """
    known = stage_names()
    if name not in known:
        raise UserError(f"no stage {name!r}; there are {', '.join(known)}")
    stage = importlib.import_module(f"stages.{name}").STAGE
    assert isinstance(stage, Stage)
    return stage


def stage_names(root: Path | None = None) -> list[str]:
    """Return the stages that exist, sorted: those of a checkout, or those that this process would load."""
    import stages

    folder = Path(stages.__path__[0]) if root is None else root / "stages"
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def known_mentions(home: Path) -> Memory:
    """Return what is remembered of files of code, for `code_hashes`."""
    return Memory(home / ".scratch" / "mentions.json", MOST_MENTIONS)


def ingredients(
    request: Request,
    root: Path,
    hasher: Hasher,
    constraints: str | None = None,
    mentions: Memory | None = None,
) -> Ingredients:
    """Hash what a request's result depends on.

    Args:
        request: what is asked for.
        root: the checkout.
        hasher: computes md5.
        constraints: name of the constraints file; default the environment's own.
        mentions: what files of code mention, from earlier calls; see `code_hashes`.

    Raises:
        UserError: an input is missing, or params.yaml is wrong anywhere: better now than hours later in another stage.
    """
    stage = request.stage
    path = root / "params.yaml"
    tree = read_tree(path)
    load_params(stage, tree, request.axes, where=str(path.name))
    parse_section(tree, AllParams, where=str(path.name))
    keys = sorted(stage.params_keys(request.axes).values())
    return Ingredients(
        stage=stage.name,
        axes=dict(request.axes),
        deps={name: _input_md5(hasher, name, root / at) for name, at in request.inputs.items()},
        code=code_hashes(root, f"stages.{stage.name}", mentions),
        params={key: cut(tree, key, where=path.name) for key in keys},
        constraints=hasher.md5(root / "constraints" / f"{constraints or stage.environment}.txt"),
    )


def differences(before: Ingredients, after: Ingredients) -> list[str]:
    """Name what differs between two sets of ingredients of one request."""
    lines = []
    for kind in ("deps", "code", "params"):
        old, new = getattr(before, kind), getattr(after, kind)
        lines += [f"{kind} {key}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if before.constraints != after.constraints:
        lines.append("the environment's constraints file")
    return lines


def params_tree(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turn sections by dotted key into the tree that a stage reads: what it does not declare is not there."""
    tree: dict[str, Any] = {}
    for key in sorted(params):
        *above, last = key.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[last] = params[key]
    return tree


def _input_md5(hasher: Hasher, name: str, path: Path) -> str:
    try:
        return hasher.md5(path)
    except UserError as error:
        raise UserError(
            f"input --{name.replace('_', '-')} does not exist: {path}; the stage that writes it has not run here: "
            "`dvc repro` runs it, `dvc pull` fetches it"
        ) from error
