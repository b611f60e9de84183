"""Where training runs, in which precision, and with the same bits every time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from afm.errors import UserError

Dtype = Literal["float32", "bfloat16"]

BYTES_PER_PARAMETER = 16
"""fp32 weight, gradient and two AdamW moments; activations come on top [bytes]."""


def pick_device(dtype: Dtype) -> Any:
    """Return the CUDA device where there is one, else the CPU.

    Args:
        dtype: Precision of the forward pass.

    Raises:
        UserError: bfloat16 without a GPU: CPUs without bf16 units are 6 to 13 times slower with it.
    """
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if dtype != "float32":
        raise UserError(
            f"dtype is {dtype!r} and torch sees no GPU; a CPU trains in 'float32': set the dtype "
            "of this scale in params.yaml to float32, or run the stage on a machine with a GPU"
        )
    return torch.device("cpu")


def check_memory(num_parameters: int, device: Any) -> None:
    """Refuse a model whose weights, gradients and moments cannot fit one GPU.

    Raises:
        UserError: with what is needed and what there is.
    """
    import torch

    if device.type != "cuda":
        return
    needed, there = (
        num_parameters * BYTES_PER_PARAMETER,
        torch.cuda.mem_get_info(device)[1],
    )
    if needed > there:
        raise UserError(
            f"full fine-tuning of {num_parameters:,} parameters needs more than "
            f"{needed / 2**30:.0f} GiB on one GPU, which has {there / 2**30:.0f} GiB; "
            "take a smaller scale or a larger GPU"
        )


def autocast(dtype: Dtype, device: Any) -> Any:
    """Return the context of a forward pass; weights and moments stay fp32 in either precision."""
    import torch

    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


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
