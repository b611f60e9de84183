"""The training loop: what the loss is, that it repeats, and that a kill changes nothing."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from afm.errors import TrainerError, UserError
from afm.params.scales import SftParams
from afm.training import sft, trainer
from afm.training.device import pick_device
from afm.training.packing import Example, micro_batches
from afm.training.record import read_steps
from afm.training.sft import Order
from afm.training.sft_data import SftData
from tests.unit.toy_training import examples, load_toy, make_toy_model

DATA = SftData(examples=tuple(examples(10)), dropped_too_long=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def params(**changes: Any) -> SftParams:
    values: dict[str, Any] = {
        "seed": 1,
        "epochs": 1.5,
        "lr": 0.01,
        "matrix_lr": 0.02,
        "weight_decay": 0.1,
        "warmup_share": 0.2,
        "schedule": "linear",
        "batch_size": 4,
        "max_tokens": 64,
        "micro_batch_tokens": 30,
        "packing": True,
        "grad_clip": 1.0,
        "checkpoint_steps": 2,
        "dtype": "float32",
        "by_agent": {},
    }
    return SftParams(**(values | changes))


def train(folder: Path, scratch: Path, settings: SftParams) -> Any:
    model = load_toy(folder)
    steps = scratch / "steps.jsonl"
    sft.train(model, DATA, settings, folder=scratch / "checkpoints", steps=steps, source="base")
    return model


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def gradient(folder: Path, items: list[Example], **changes: Any) -> tuple[float, torch.Tensor]:
    model, settings = load_toy(folder), sft._settings(params(**changes))
    batches = list(
        micro_batches(
            items, micro_batch_tokens=settings.micro_batch_tokens, packing=settings.packing
        )
    )
    loss = trainer.accumulate(model, batches, settings)
    return loss, torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize(
    "changes", [{"micro_batch_tokens": 1000}, {"packing": False}, {"micro_batch_tokens": 3}]
)
def test_loss_and_gradient_do_not_depend_on_how_a_batch_is_cut(
    folder: Path, changes: dict[str, Any]
) -> None:
    items = examples(8)
    loss, grad = gradient(folder, items)
    other_loss, other_grad = gradient(folder, items, **changes)
    assert loss == pytest.approx(other_loss, abs=1e-5)
    torch.testing.assert_close(grad, other_grad, rtol=0, atol=1e-5)


def test_loss_does_not_depend_on_masked_tokens(folder: Path) -> None:
    items = examples(4)
    tail = [
        Example(input_ids=(*i.input_ids, 70, 71, 72), trained=(*i.trained, False, False, False))
        for i in items
    ]
    unread = Example(input_ids=(9, 8, 7), trained=(False, False, False))
    loss, grad = gradient(folder, items)
    other_loss, other_grad = gradient(folder, [*tail, unread])
    assert loss == pytest.approx(other_loss, abs=1e-5)
    torch.testing.assert_close(grad, other_grad, rtol=0, atol=1e-5)


def test_two_runs_give_the_same_bits(folder: Path, tmp_path: Path) -> None:
    one = train(folder, tmp_path / "a", params())
    other = train(folder, tmp_path / "b", params())
    assert same(weights(one), weights(other))
    records = [(tmp_path / name / "steps.jsonl").read_bytes() for name in "ab"]
    assert records[0] == records[1]
    assert not same(weights(one), weights(load_toy(folder)))


@pytest.mark.parametrize("matrix_lr", [None, 0.02])
def test_loss_falls(folder: Path, tmp_path: Path, matrix_lr: float | None) -> None:
    train(folder, tmp_path, params(epochs=10.0, matrix_lr=matrix_lr))
    rows = read_steps(tmp_path / "steps.jsonl")
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]


@pytest.mark.parametrize("killed_after", [1, 2, 3])
def test_a_killed_run_goes_on_to_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    whole = train(folder, tmp_path / "whole", params())
    update = trainer.Trainer._update

    def update_then_die(self: trainer.Trainer, share: float) -> float:
        norm = update(self, share)
        if self.step == killed_after:
            raise KeyboardInterrupt
        return norm

    monkeypatch.setattr(trainer.Trainer, "_update", update_then_die)
    with pytest.raises(KeyboardInterrupt):
        train(folder, tmp_path / "killed", params())
    monkeypatch.undo()
    with (tmp_path / "killed" / "steps.jsonl").open("a", encoding="utf-8") as record:
        record.write('{"step": 99')
    resumed = train(folder, tmp_path / "killed", params())
    assert same(weights(resumed), weights(whole))
    records = [(tmp_path / name / "steps.jsonl").read_bytes() for name in ("whole", "killed")]
    assert records[0] == records[1]


def test_sigterm_saves_the_step_in_progress_and_then_ends(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = params(checkpoint_steps=100)
    whole = train(folder, tmp_path / "whole", settings)
    update = trainer.Trainer._update

    def update_under_signal(self: trainer.Trainer, share: float) -> float:
        if self.step == 1:
            signal.raise_signal(signal.SIGTERM)
        return update(self, share)

    def terminate(_signum: int, _frame: Any) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(trainer.Trainer, "_update", update_under_signal)
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(SystemExit):
            train(folder, tmp_path / "ended", settings)
        assert signal.getsignal(signal.SIGTERM) is terminate
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "ended" / "checkpoints").iterdir()] == [
        "step-00000002"
    ]
    resumed = train(folder, tmp_path / "ended", settings)
    assert same(weights(resumed), weights(whole))


def test_a_checkpoint_of_other_settings_is_not_continued(folder: Path, tmp_path: Path) -> None:
    train(folder, tmp_path / "a", params())
    changed = train(folder, tmp_path / "a", params(lr=0.02))
    fresh = train(folder, tmp_path / "b", params(lr=0.02))
    assert same(weights(changed), weights(fresh))


def test_a_rate_that_diverges_stops_the_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="lower the learning rate"):
        train(folder, tmp_path, params(lr=1e30, matrix_lr=None, epochs=20.0))


def test_metrics_equal_the_record(folder: Path, tmp_path: Path) -> None:
    settings = params(packing=False)
    train(folder, tmp_path, settings)
    rows = read_steps(tmp_path / "steps.jsonl")
    metrics = sft.metrics(DATA, settings, rows)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert metrics["sft/steps"] == 4
    assert metrics["sft/dropped_too_long"] == 1
    assert metrics["sft/trained_tokens"] == sum(row["trained_tokens"] for row in rows)
    assert 0 < metrics["sft/padding_share"] < 1
    assert (
        metrics["sft/loss_last"]
        == json.loads((tmp_path / "steps.jsonl").read_text().splitlines()[-1])["loss"]
    )


@given(st.integers(1, 30), st.integers(1, 9), st.floats(0.1, 4))
def test_every_epoch_reads_every_example_once(count: int, batch: int, epochs: float) -> None:
    order = Order(num_examples=count, batch_size=batch, epochs=epochs, seed=3)
    read = [index for step in range(order.total_steps) for index in order.batch(step)]
    assert len(read) == max(1, round(epochs * count))
    for start in range(0, len(read), count):
        epoch = read[start : start + count]
        assert len(set(epoch)) == len(epoch)


def test_epochs_differ_in_order() -> None:
    order = Order(num_examples=20, batch_size=20, epochs=2.0, seed=3)
    assert order.batch(0) != order.batch(1)


def test_bfloat16_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"set the dtype .* to float32"):
        pick_device("bfloat16")
