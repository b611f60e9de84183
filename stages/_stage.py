"""What a stage is: its declaration, and the command line derived from it.

A stage declares dataclasses of params sections, input paths and output paths. The command line has one flag per path
and per matrix axis and never a hyper-parameter, so what DVC tracks is all that a stage can read.
"""

import argparse
import dataclasses
import os
import signal
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from afm.errors import UserError
from afm.jsonl import read_json, write_json
from afm.params._model import Section
from afm.params.reading import cut, parse_section, read_tree

Axis = Literal["agent", "scale", "variant", "endpoint"]
Environment = Literal["pipeline", "serve", "rl"]
Launcher = Literal["single", "torchrun", "ray"]
"""How a stage uses several nodes: not at all, as ranks of torchrun, or as the driver of a Ray cluster."""

EXIT_USER_ERROR = 2
"""Exit code for what a user can mend; printed without a traceback."""
EXIT_CRASHED = 1
EXIT_TERMINATED = 143
"""Exit code after SIGTERM, by convention 128 + 15."""
EXIT_FILE = "exit.json"
"""File in scratch with the exit code: whoever adopts a running stage cannot wait for a process it did not start."""
ENDPOINTS = "endpoints.json"
"""File in scratch with the blocks of the endpoints that a stage asks."""
JUDGE_KEY = "judge.models.{agent}"
"""Key of the params section that says who judges an agent's answers; null where none does."""
LOCK_VARIABLE = "AFM_LOCK_FD"
"""Environment variable: descriptor of the lock that says this stage is running; it closes with the process."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a stage knows about its cell besides params and paths."""

    axes: Mapping[str, str]
    """Matrix axes of the cell, for instance {"agent": "mhqa", "scale": "tiny"}."""
    scratch: Path
    """Folder for checkpoints and logs; survives a kill, keyed by the identity of the result."""

    @property
    def agent(self) -> str:
        """Task domain of the cell."""
        return self.axes["agent"]

    @property
    def scale(self) -> str:
        """Model scale of the cell."""
        return self.axes["scale"]

    @property
    def variant(self) -> str:
        """Model variant of the cell."""
        return self.axes["variant"]

    @property
    def endpoint(self) -> str | None:
        """Endpoint of params.yaml that the cell asks; None where it asks none."""
        return self.axes.get("endpoint")

    @property
    def endpoints(self) -> Path:
        """JSON object of how each endpoint of the cell is reached, which submit writes: it changes no result."""
        return self.scratch / ENDPOINTS

    @property
    def steps(self) -> Path:
        """JSON Lines of training steps: `{"step": int, "<metric>": float, ...}`, appended live."""
        return self.scratch / "steps.jsonl"

    @property
    def facts(self) -> Path:
        """JSON object for the run record: endpoints, served model ids, token use, cost. Optional."""
        return self.scratch / "facts.json"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the pipeline."""

    name: str
    run: Callable[[Any, Any, Any, Context], None]
    params: type
    """Dataclass of `Section` fields; `metadata={"key": ...}` where the key differs from the name."""
    inputs: type
    """Dataclass of `Path` fields, or `Path | None` for one that not every cell has."""
    outputs: type
    """Dataclass of `Path` fields."""
    axes: tuple[Axis, ...]
    optional_axes: tuple[Axis, ...] = ()
    """Axes that not every cell has; a params section whose key needs a missing one is None."""
    environment: Environment = "pipeline"
    launcher: Launcher = "single"

    def params_keys(self, axes: Mapping[str, str]) -> dict[str, str]:
        """Map each params field that a cell has to its dotted key in params.yaml."""
        keys = {
            field.name: str(field.metadata.get("key", field.name))
            for field in dataclasses.fields(self.params)
        }
        missing = set(self.optional_axes) - set(axes)
        return {
            name: key.format(**axes)
            for name, key in keys.items()
            if not any(f"{{{axis}}}" in key for axis in missing)
        }

    @property
    def asks_judge(self) -> bool:
        """Whether its agent's judge may be asked: it declares who that is."""
        return any(
            field.metadata.get("key") == JUDGE_KEY for field in dataclasses.fields(self.params)
        )


def path_fields(declaration: type) -> dict[str, bool]:
    """Map each path field of an Inputs or Outputs dataclass to whether it is required."""
    hints = typing.get_type_hints(declaration)
    return {
        field.name: not isinstance(hints[field.name], types.UnionType)
        for field in dataclasses.fields(declaration)
    }


def flag(name: str, *, output: bool) -> str:
    """Return the command-line flag of a path field."""
    dashed = name.replace("_", "-")
    return f"--out-{dashed}" if output else f"--{dashed}"


def make_parser(stage: Stage) -> argparse.ArgumentParser:
    """Build the stage's command line: axes, input paths, output paths."""
    parser = argparse.ArgumentParser(
        prog=f"python -m stages.{stage.name}", description=sys.modules[stage.run.__module__].__doc__
    )
    for axis in stage.axes:
        parser.add_argument(f"--{axis}", required=True)
    for axis in stage.optional_axes:
        parser.add_argument(f"--{axis}")
    for name, required in path_fields(stage.inputs).items():
        parser.add_argument(flag(name, output=False), type=Path, required=required)
    for name in path_fields(stage.outputs):
        parser.add_argument(flag(name, output=True), type=Path, required=True)
    return parser


def load_params(stage: Stage, tree: Mapping[str, Any], axes: Mapping[str, str], where: str) -> Any:
    """Read the declared sections, and nothing else, from a params tree.

    Raises:
        UserError: a section is missing or malformed.
    """
    hints = typing.get_type_hints(stage.params)
    sections: dict[str, Section | None] = dict.fromkeys(hints)
    for name, key in stage.params_keys(axes).items():
        value = cut(dict(tree), key, where=where)
        if value is not None or not typing.get_args(hints[name]):
            sections[name] = parse_section(value, _section(hints[name]), where=f"{where}: {key}")
    return stage.params(**sections)


def _section(hint: Any) -> type[Section]:
    """Return the section of a field; one that not every cell has is declared `Section | None`."""
    found: type[Section] = typing.get_args(hint)[0] if typing.get_args(hint) else hint
    return found


def cell_axes(stage: Stage, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the matrix axes of a cell from its parsed command line."""
    found = {axis: values[axis] for axis in (*stage.axes, *stage.optional_axes)}
    return {axis: value for axis, value in found.items() if value is not None}


def main(stage: Stage) -> NoReturn:
    """Run a stage from its command line and exit.

    Exit codes: 0 done; 2 something the user can mend (one message, no traceback); 143 after SIGTERM; 1 anything else.
    """
    signal.signal(signal.SIGTERM, _on_terminate)
    _keep_lock_from_children()
    parser = make_parser(stage)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    code, process = EXIT_CRASHED, os.getpid()
    try:
        _run(stage, args)
        code = 0
    except UserError as error:
        print(f"{stage.name}: {error}", file=sys.stderr)
        code = EXIT_USER_ERROR
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else EXIT_CRASHED
    finally:
        if os.getpid() == process:  # a fork that is ended unwinds to here too
            write_json(exit_file(args.scratch, _rank()), {"code": code})
    sys.exit(code)


def _run(stage: Stage, args: argparse.Namespace) -> None:
    axes = cell_axes(stage, vars(args))
    read = read_json if args.params.suffix == ".json" else read_tree
    params = load_params(stage, read(args.params), axes, where=str(args.params))
    inputs = stage.inputs(**{name: getattr(args, name) for name in path_fields(stage.inputs)})
    for name, path in vars(inputs).items():
        if path is not None and not path.exists():
            raise UserError(f"input {name} does not exist: {path}")
    outputs = stage.outputs(
        **{name: getattr(args, f"out_{name}") for name in path_fields(stage.outputs)}
    )
    stage.run(params, inputs, outputs, Context(axes=axes, scratch=args.scratch))
    paths = vars(outputs).values() if _rank() == 0 else ()
    missing = [str(path) for path in paths if not path.exists()]
    assert not missing, f"stage {stage.name} ended without writing {missing}"


def exit_file(scratch: Path, rank: int) -> Path:
    """Return the file with the exit code of a stage, or of a rank of it that only its own node asks for."""
    return scratch / (EXIT_FILE if rank == 0 else f"exit.{rank}.json")


def _rank() -> int:
    """Return this process's number among those of the stage: torchrun's, and the first one writes the outputs."""
    return int(os.environ.get("RANK", "0"))


def _on_terminate(_signum: int, _frame: Any) -> NoReturn:
    sys.exit(EXIT_TERMINATED)


def _keep_lock_from_children() -> None:
    """Let forks share the lock, since they may still write, but no program that this stage starts."""
    if LOCK_VARIABLE in os.environ:
        os.set_inheritable(int(os.environ.pop(LOCK_VARIABLE)), False)
