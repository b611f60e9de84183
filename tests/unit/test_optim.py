"""Muon in fp32: the orthogonalisation, the update, and that it learns."""

import pytest

torch = pytest.importorskip("torch")

from afm.training.optim import Muon32, orthogonalize  # noqa: E402


@pytest.mark.parametrize("shape", [(8, 8), (6, 20)])
def test_orthogonalize_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices, steps=8))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_orthogonalize_keeps_singular_vectors() -> None:
    matrix = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    rotated = u.mT @ orthogonalize(matrix[None])[0] @ vh.mT
    off_diagonal = rotated - torch.diag(torch.diagonal(rotated))
    assert off_diagonal.abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(4, 10), (10, 4)])
def test_first_step_is_the_scaled_orthogonal_gradient(shape: tuple[int, int]) -> None:
    start = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    param = torch.nn.Parameter(start.clone())
    param.grad = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    gradient = param.grad if shape[0] <= shape[1] else param.grad.T
    direction = orthogonalize(gradient[None])[0]
    direction = direction if shape[0] <= shape[1] else direction.T
    Muon32([param], lr=0.1, weight_decay=0.5).step()
    scale = 0.1 * max(1.0, shape[0] / shape[1]) ** 0.5
    torch.testing.assert_close(param.data, start * (1 - 0.1 * 0.5) - scale * direction)


def test_parameter_without_gradient_stays() -> None:
    param = torch.nn.Parameter(torch.ones(3, 3))
    Muon32([param], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(param.data, torch.ones(3, 3))


def test_state_survives_a_save() -> None:
    def run(steps: int, resume_at: int | None) -> "torch.Tensor":
        target = torch.randn(6, 6, generator=torch.Generator().manual_seed(4))
        param = torch.nn.Parameter(torch.zeros(6, 6))
        optimizer = Muon32([param], lr=0.05)
        for step in range(steps):
            if step == resume_at:
                state = optimizer.state_dict()
                optimizer = Muon32([param], lr=0.05)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            (param - target).square().sum().backward()
            optimizer.step()
        return param.data

    assert torch.equal(run(10, None), run(10, 5))


def test_loss_falls_on_a_linear_problem() -> None:
    generator = torch.Generator().manual_seed(5)
    inputs, truth = torch.randn(64, 8, generator=generator), torch.randn(8, 4, generator=generator)
    layer = torch.nn.Linear(8, 4, bias=False)
    optimizer = Muon32(layer.parameters(), lr=0.1)
    losses = []
    for step in range(80):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 80)
        loss = (layer(inputs) - inputs @ truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]
