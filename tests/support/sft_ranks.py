"""Train the toy model in as many processes as torchrun starts: `-m tests.support.sft_ranks CASES OUT`.

One start serves many cases, since most of it is imports. CASES is a JSON list; each case trains into OUT/<name>.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from afm.params.scales import SftParams
from afm.training import sft, trainer
from afm.training.model_folder import load_model, save_model
from afm.training.ranks import Ranks, joined
from afm.training.sft_data import SftData
from tests.unit.toy_training import examples

PARAMS: dict[str, Any] = {
    "seed": 1,
    "epochs": 1.5,
    "lr": 0.01,
    "matrix_lr": None,
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
DATA = SftData(examples=tuple(examples(10)), dropped_too_long=1)


def train(case: dict[str, Any], model: Path, out: Path, ranks: Ranks) -> None:
    """Train one case and save its model; `term` sends SIGTERM to one rank in the middle of a step."""
    policy = load_model(model, torch.device("cpu"))
    if case.get("checkpointing"):  # as on a GPU
        policy.gradient_checkpointing_enable()
    folder = out / case.get("folder", case["name"])
    if ranks.is_first:
        folder.mkdir(parents=True, exist_ok=True)
    ranks.wait()
    update = trainer.Trainer._update
    if "term" in case:
        trainer.Trainer._update = _interrupted(update, ranks, **case["term"])  # type: ignore[method-assign]
    try:
        sft.train(
            policy,
            DATA,
            SftParams(**(PARAMS | case.get("params", {}))),
            folder=folder / "checkpoints",
            steps=folder / "steps.jsonl",
            source="base",
            ranks=ranks,
        )
    except SystemExit as ended:
        (folder / f"ended.{ranks.rank}").write_text(str(ended.code))
        return
    finally:
        trainer.Trainer._update = update  # type: ignore[method-assign]
    save_model(
        policy,
        folder / "model",
        tokenizer_from=model,
        card="toy",
        dtype=case.get("dtype", "float32"),
    )


def _interrupted(update: Any, ranks: Ranks, *, rank: int, step: int) -> Any:
    def wrapped(self: trainer.Trainer, share: float) -> float:
        if self.step == step and ranks.rank == rank:
            signal.raise_signal(signal.SIGTERM)
        return float(update(self, share))

    return wrapped


def _terminate(_signum: int, _frame: Any) -> None:
    raise SystemExit(143)


def main() -> None:
    """Train every case, in order."""
    cases, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    signal.signal(signal.SIGTERM, _terminate)
    with joined(torch.device("cpu")) as ranks:
        for case in cases:
            train(case, out / "base", out, ranks)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
