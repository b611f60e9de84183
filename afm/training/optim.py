"""Muon in fp32, for training on a CPU."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import overload

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, from Keller Jordan's Muon."""


def orthogonalize(matrices: torch.Tensor, *, steps: int = 5) -> torch.Tensor:
    """Bring the singular values of each matrix near 1 by a quintic Newton-Schulz iteration.

    Args:
        matrices: ``[N, rows, columns]`` float, rows <= columns for speed.
        steps: Iterations.

    Returns:
        ``[N, rows, columns]``; singular values between about 0.7 and 1.2.
    """
    a, b, c = NEWTON_SCHULZ
    x: torch.Tensor = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x


class Muon32(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, for 2-D weights.

    After Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024),
    https://kellerjordan.github.io/posts/muon/. ``torch.optim.Muon`` is not used because it
    iterates in bfloat16, which most CPUs emulate; here all is fp32 and matrices of one shape
    are iterated together.

    Args:
        params: 2-D parameters.
        lr: Step size; an update has a root mean square of about ``lr / sqrt(columns)``.
        weight_decay: Decoupled decay, times ``lr``.
        momentum: Nesterov momentum.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:
        """Set the same rates for all parameters."""
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step."""
        assert closure is None, "Muon32 takes no closure"
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]]
            by_shape = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    update = self._nesterov(param, group["momentum"])
                    wide = update if update.shape[0] <= update.shape[1] else update.T
                    by_shape[(wide.shape[0], wide.shape[1])].append((param, wide))
            for pairs in by_shape.values():
                self._apply(pairs, group)
        return None

    def _nesterov(self, param: torch.Tensor, momentum: float) -> torch.Tensor:
        assert param.grad is not None
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        average: torch.Tensor = state["momentum"].mul_(momentum).add_(param.grad)
        return param.grad + momentum * average

    @staticmethod
    def _apply(pairs: list[tuple[torch.Tensor, torch.Tensor]], group: dict[str, float]) -> None:
        updates = orthogonalize(torch.stack([update for _, update in pairs]))
        for (param, _), wide in zip(pairs, updates, strict=True):
            rows, columns = param.shape
            update = wide if rows <= columns else wide.T
            param.mul_(1 - group["lr"] * group["weight_decay"])
            param.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)
