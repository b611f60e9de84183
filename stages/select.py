"""Select: choose the queries for reinforcement by pass rate, SFT set and lot."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afm.averages import share
from afm.errors import UserError
from afm.jsonl import read_rows, write_json, write_rows
from afm.params.screening import SelectParams
from afm.screening import REASONS, PassRate, select_queries
from afm.types import LedgerRow, Query, Trajectory
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections of params.yaml."""

    select: SelectParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is read."""

    queries: Path
    """Folder with `rl.jsonl`: rows of `Query`, the candidates."""
    pass_rates: Path
    """One `PassRate` per candidate."""
    accepted: Path
    """Rows of `Trajectory`: the SFT set."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written."""

    selected: Path
    """Rows of `Query`, in the order of the candidates."""
    ledger: Path
    """One `LedgerRow` per candidate."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Select queries.

    Raises:
        UserError: no threshold for the agent, pass rates of other queries, or nothing left.
    """
    selection = select_queries(
        read_rows(inputs.queries / "rl.jsonl", Query),
        read_rows(inputs.pass_rates, PassRate),
        read_rows(inputs.accepted, Trajectory),
        max_pass_rate=threshold(params.select, context.agent),
        num_queries=params.select.num_queries,
        seed=params.select.seed,
    )
    write_rows(outputs.selected, selection.queries)
    write_rows(outputs.ledger, selection.ledger)
    write_json(outputs.metrics, summarise(selection.ledger))


def threshold(params: SelectParams, agent: str) -> float:
    """Return the agent's largest pass rate.

    Raises:
        UserError: there is none.
    """
    for name, value in params.max_pass_rate.items():
        if name == agent:
            return value
    raise UserError(
        f"select.max_pass_rate has no entry for agent {agent!r}: it has {sorted(params.max_pass_rate)}"
    )


def summarise(ledger: Sequence[LedgerRow]) -> dict[str, float]:
    """Count the ledger."""
    counts = Counter(row.reason for row in ledger)
    return {
        "select/candidates": len(ledger),
        "select/kept": counts["ok"],
        "select/screened_out_share": share(counts["too_easy"], len(ledger)),
    } | {f"select/dropped/{reason}": counts[reason] for reason in REASONS}


STAGE = Stage(
    name="select", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=("agent",)
)

if __name__ == "__main__":
    main(STAGE)
