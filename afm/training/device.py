"""Where training runs, in which precision, and with the same bits every time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from afm.errors import UserError
from afm.training.ranks import current_ranks

Dtype = Literal["float32", "bfloat16"]

BYTES_PER_PARAMETER = 16
"""fp32 weight, gradient and two AdamW moments; activations come on top [bytes]."""


def pick_device(dtype: Dtype) -> Any:
    """Return the CUDA device where there is one, this rank's where there are ranks, else the CPU.

    Args:
        dtype: Precision of the forward pass.

    Raises:
        UserError: bfloat16 without a GPU: CPUs without bf16 units are 6 to 13 times slower with it.
    """
    import torch

    if torch.cuda.is_available():
        ranks = current_ranks()
        torch.cuda.set_device(ranks.local_rank)
        return torch.device("cuda", ranks.local_rank)
    if dtype != "float32":
        raise UserError(
            f"dtype is {dtype!r} and torch sees no GPU; a CPU trains in 'float32': set the dtype "
            "of this scale in params.yaml to float32, or run the stage on a machine with a GPU"
        )
    return torch.device("cpu")


def check_memory(num_parameters: int, device: Any, num_gpus: int = 1) -> None:
    """Refuse a model whose weights, gradients and moments cannot fit the GPUs that share them.

    Raises:
        UserError: with what is needed and what there is.
    """
    import torch

    if device.type != "cuda":
        return
    needed = num_parameters * BYTES_PER_PARAMETER / num_gpus
    there = torch.cuda.mem_get_info(device)[1]
    if needed > there:
        raise UserError(
            f"full fine-tuning of {num_parameters:,} parameters needs more than "
            f"{needed / 2**30:.0f} GiB on each of {num_gpus} GPUs, which have {there / 2**30:.0f} GiB; "
            "take a smaller scale, or more or larger GPUs: on a cluster, the scale's `cluster` block has their number"
        )


def autocast(dtype: Dtype, device: Any, *, sharded: bool = False) -> Any:
    """Return the context of a forward pass; weights and moments stay fp32 in either precision."""
    import torch

    if dtype == "float32":
        return nullcontext()
    # Its cache would keep a copy of every layer that the ranks gather, so all of the model.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=not sharded)


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Seed torch and fix its threads (OMP_NUM_THREADS, else every core) and algorithms.

    Two runs with the same number of threads on the same machine give the same bits.
    """
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    # On a GPU one kernel of attention has no deterministic form; a warning is the most there is.
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])
