"""The processes that train one model together; alone, nothing here does anything."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = timedelta(hours=2)
"""How long a collective call may take: the first rank hashes and writes whole models while the others wait.

Lost ranks are not found by it; whoever started the ranks watches over them.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among those that train one model; torchrun's variables say which."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the processes of its machine: the number of its GPU."""

    @property
    def is_first(self) -> bool:
        """Whether this one writes what is written once."""
        return self.rank == 0

    def first(self, make: Callable[[], T]) -> T:
        """Let the first rank make something small, and give it to all."""
        if self.size == 1:
            return make()
        import torch.distributed as dist

        box = [make() if self.is_first else None]
        dist.broadcast_object_list(box)
        return box[0]  # type: ignore[return-value]

    def any(self, flag: bool) -> bool:
        """Tell whether it holds for any rank."""
        return self.sum(float(flag)) > 0

    def sum(self, value: float) -> float:
        """Return the sum over all ranks, the same on each."""
        if self.size == 1:
            return value
        import torch
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        total = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.sum(0.0)


ALONE = Ranks()


def current_ranks(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Return this process's place."""
    names = {"rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
    return Ranks(**{key: int(environ[name]) for key, name in names.items() if name in environ})


@contextmanager
def joined(device: Any) -> Iterator[Ranks]:
    """Join the ranks inside the block: NCCL between GPUs, gloo between CPUs."""
    ranks = current_ranks()
    if ranks.size == 1:
        yield ranks
        return
    import torch.distributed as dist

    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield ranks
    finally:
        dist.destroy_process_group()
