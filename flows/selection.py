"""Which cells a run is about: targets, or stages x agents x scales; and what it may do."""

import argparse
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from afm.errors import UserError
from flows.dag import Cell, Plan, read_plan
from flows.executors import EXECUTORS


class Selection(BaseModel):
    """What somebody asks the flow for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    targets: tuple[str, ...] = ()
    """Cells (`sft@mhqa-tiny`) or blocks of dvc.yaml (`sft`); empty: all."""
    agents: tuple[str, ...] = ()
    """Empty: all; likewise below."""
    scales: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    force: bool = False
    """Ask for the chosen cells again even where nothing changed; a finished result is published, not made twice."""
    allow_code_rerun: bool = False
    """Let GPU stages run again where nothing but code has changed."""

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> Self:
        """Return what a command line asks for."""
        return cls.model_validate({name: getattr(args, name) for name in cls.model_fields})

    def plan(self, root: Path) -> tuple[Plan, frozenset[str]]:
        """Ask DVC for the plan.

        Returns:
            The chosen cells with all they read, and the names of the chosen.

        Raises:
            UserError: a target does not exist, nothing is chosen, or dvc.yaml or params.yaml cannot be read.
        """
        whole = read_plan(root)
        named = whole.named(self.targets)
        chosen = frozenset(
            cell.name for cell in whole.cells if cell.name in named and self._has(cell)
        )
        if not chosen:
            raise UserError(
                f"{self._described()}: no cell of the pipeline fits all of that; `afm run --dry-run` lists the cells"
            )
        return whole.narrowed(chosen), chosen

    def _has(self, cell: Cell) -> bool:
        stage = not self.stages or bool({cell.stage, cell.module} & {*self.stages})
        agent, scale = cell.axis("agent"), cell.axis("scale")
        is_of_agent = not self.agents or agent is None or agent in self.agents
        for_all = scale is None or not is_on(cell, scale)
        return stage and is_of_agent and (not self.scales or for_all or scale in self.scales)

    def _described(self) -> str:
        given = {key: value for key, value in self if value and not isinstance(value, bool)}
        return "; ".join(f"{key} {', '.join(value)}" for key, value in given.items())


def is_on(cell: Cell, scale: str) -> bool:
    """Tell whether a cell exists for a scale; one that serves all scales with the model of one is no cell of that."""
    return f"-{scale}-" in f"{cell.name}-"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm run`."""
    parser.add_argument("targets", nargs="*", help="cells or stages; default: the whole pipeline")
    for axis in ("agents", "scales", "stages"):
        parser.add_argument(
            f"--{axis}", type=_names, default=(), metavar="A,B", help=f"only these {axis}"
        )
    parser.add_argument(
        "--executor", choices=EXECUTORS, help="where stages run; default: AFM_EXECUTOR, or local"
    )
    parser.add_argument("--force", action="store_true", help="even where nothing changed")
    parser.add_argument(
        "--allow-code-rerun", action="store_true", help="GPU stages too where only code changed"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would run, and why")
    parser.add_argument("--json", action="store_true", help="with --dry-run: for machines")


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
