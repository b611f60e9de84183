"""verl's dataset: the training queries as one endless, seeded stream of rows."""

from typing import Any

import torch
from torch.utils.data import Dataset

from afm.training.verl.order import row_at
from afm.training.verl.run import current_run, training_rows

_LENGTH = 10**9
"""Rows that the stream claims to have: it never ends, so verl never starts a second epoch."""


class QueryStream(Dataset[dict[str, Any]]):
    """Row `i` depends on seed and `i` alone; a resumed loader skips to where it was."""

    def __init__(self, **_verl: Any) -> None:
        """Read the run's queries; what verl passes is in the run already."""
        self.run = current_run()
        self.queries, self.fixtures = training_rows(self.run)

    def __len__(self) -> int:
        """Return a number that no run reaches."""
        return _LENGTH

    def __getitem__(self, position: int) -> dict[str, Any]:
        """Return one row: the query as JSON, its agent, and what verl insists on."""
        row = row_at(
            position,
            queries=len(self.queries),
            fixtures=len(self.fixtures),
            batch_size=self.run.batch_size,
            seed=self.run.dapo.seed,
        )
        query = (*self.queries, *self.fixtures)[row]
        return {
            "query": query.model_dump_json(),
            "agent_name": query.agent,
            "index": row,
            "raw_prompt": query.question,
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),
        }
