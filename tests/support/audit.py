"""The stages of one agent with made-up results, and small checkouts in which they have run."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.records import Record
from tests.support.audit_rows import (
    CARD,
    PARAMS,
    Row,
    ledger,
    lines,
    pass_rates,
    query,
    steps,
    trajectory,
)
from tests.support.audit_world import World


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many queries each split has."""

    sft: int = 40
    rl: int = 16
    eval: int = 8


class Pipeline:
    """The stages of one agent in a world, each from what the world holds at its inputs' paths."""

    def __init__(self, world: World, sizes: Sizes, *, agent: str = "mhqa", seed: int = 0) -> None:
        """Draw everything from `seed`."""
        self.world, self.agent, self.seed = world, agent, seed
        self.draw = random.Random(seed)
        self.queries = {
            split: [query(n, split, agent=agent) for n in range(getattr(sizes, split))]
            for split in ("sft", "rl", "eval")
        }
        self.trajectories: list[Row] = []
        self.accepted: list[Row] = []
        self.selected: list[Row] = []

    def prepare(self, exclude: Sequence[str] = ()) -> Record:
        self.queries = {
            split: [row for row in rows if row["query_id"] not in exclude]
            for split, rows in self.queries.items()
        }
        files = {f"{split}.jsonl": lines(rows) for split, rows in self.queries.items()}
        card = CARD.format(elements=self.world.licence_of_elements).encode()
        section = PARAMS["prepare"] | {"exclude": {"query_ids": list(exclude), "sources": []}}
        return self.world.run(
            "prepare",
            {"agent": self.agent},
            {},
            {
                "queries": (self._data("prepare", "queries"), files),
                "corpus": (self._data("prepare", "corpus.jsonl"), b"{}\n"),
                "index": (self._data("prepare", "index"), {"passages.jsonl": b"{}\n"}),
                "card": (self._data("prepare", "card.md"), card),
            },
            ["prepare", f"agents.{self.agent}"],
            {f"prepare/queries/{split}": len(rows) for split, rows in self.queries.items()},
            values={"prepare": section},
        )

    def rollout(self) -> Record:
        self.trajectories = [
            trajectory(row, self.seed + n) for n, row in enumerate(self.queries["sft"])
        ]
        failed = [
            trajectory(row, -1 - self.seed) | {"stop_reason": "failed", "error": "no tool"}
            for row in self.queries["sft"][:1]
        ]
        return self.world.run(
            "rollout",
            {"agent": self.agent},
            {"queries": self._data("prepare", "queries"), "index": self._data("prepare", "index")},
            {
                "trajectories": (
                    self._data("rollout", "trajectories.jsonl"),
                    lines(self.trajectories),
                ),
                "failures": (self._data("rollout", "failures.jsonl"), lines(failed)),
            },
            ["rollout", "teacher", f"agents.{self.agent}"],
            {"rollout/rollouts": len(self.trajectories) + 1, "rollout/failed": 1},
            values={"rollout": {"seed": 23 + self.seed}},
        )

    def filter(self, salt: int = 0) -> Record:
        rows, self.accepted = [], []
        for number, row in enumerate(self.trajectories):
            reason = ("ok", "ok", "wrong_answer", "ok", "no_reflection")[(number + salt) % 5]
            if salt > 1 and number == salt % len(self.trajectories):  # no two filters keep the same
                reason = "wrong_answer" if reason == "ok" else "ok"
            copies = 2 if number % 10 == 0 else 1
            values = {"hops": 5 + number % 3, "tool_calls": 2, "salt": salt}
            rows.append(ledger(row["trajectory_id"], row["query_id"], reason, copies, **values))
            self.accepted += [row] * (copies if reason == "ok" else 0)
        kept = [row for row in rows if row["decision"] == "kept"]
        dropped = {
            f"filter/dropped/{reason}": sum(row["reason"] == reason for row in rows)
            for reason in ("wrong_answer", "no_reflection")
        }
        return self.world.run(
            "filter",
            {"agent": self.agent},
            {
                "queries": self._data("prepare", "queries"),
                "trajectories": self._data("rollout", "trajectories.jsonl"),
            },
            {
                "accepted": (self._data("filter", "accepted.jsonl"), lines(self.accepted)),
                "ledger": (self._data("filter", "ledger.jsonl"), lines(rows)),
            },
            ["filter", f"agents.{self.agent}"],
            {
                "filter/input": len(rows),
                "filter/accepted": len(kept),
                "filter/rows_out": len(self.accepted),
                **dropped,
            },
            values={"filter": {"seed": 29 + salt}},
        )

    def screen(self, scale: str) -> Record:
        rates = pass_rates(self.queries["rl"])
        return self.world.run(
            "screen",
            {"agent": self.agent, "scale": scale},
            {
                "queries": self._data("prepare", "queries"),
                "model": f"data/models/base/{self.agent}-{scale}",
            },
            {"pass_rates": (self._data("screen", "pass_rates.jsonl"), lines(rates))},
            ["screen", f"agents.{self.agent}"],
            {"screen/queries": len(rates), "screen/samples": 4 * len(rates)},
            cell=f"screen@{self.agent}",
        )

    def select(self, salt: int = 0) -> Record:
        rows, self.selected = [], []
        for number, row in enumerate(self.queries["rl"]):
            reason = "not_chosen" if (number + salt) % 4 == 0 else "ok"
            reason = "too_easy" if number % 3 == 2 else reason
            measured = {"pass_rate": number % 3 / 4, "salt": salt}
            rows.append(ledger(row["query_id"], row["query_id"], reason, **measured))
            self.selected += [row] if reason == "ok" else []
        return self.world.run(
            "select",
            {"agent": self.agent},
            {
                "queries": self._data("prepare", "queries"),
                "pass_rates": self._data("screen", "pass_rates.jsonl"),
                "accepted": self._data("filter", "accepted.jsonl"),
            },
            {
                "selected": (self._data("select", "queries.jsonl"), lines(self.selected)),
                "ledger": (self._data("select", "ledger.jsonl"), lines(rows)),
            },
            ["select"],
            {
                "select/candidates": len(rows),
                "select/kept": len(self.selected),
                **{
                    f"select/dropped/{reason}": sum(row["reason"] == reason for row in rows)
                    for reason in ("too_easy", "not_chosen")
                },
            },
        )

    def base(self, scale: str, licence: str = "apache-2.0") -> Record:
        card = f"---\nlicense: {licence}\n---\n\n# Base\n".encode()
        return self._model(
            "base",
            "base",
            scale,
            {
                "shipped": "models/shipped",
                "queries": self._data("prepare", "queries"),
                "corpus": self._data("prepare", "corpus.jsonl"),
            },
            {"README.md": card, "weights.bin": f"base {scale}".encode()},
            {"base/parameters": 1},
        )

    def sft(self, scale: str, salt: int = 0) -> Record:
        return self._model(
            "sft",
            "sft",
            scale,
            {
                "accepted": self._data("filter", "accepted.jsonl"),
                "model": f"data/models/base/{self.agent}-{scale}",
            },
            {"README.md": b"# SFT\n", "weights.bin": f"sft {scale} {self.seed} {salt}".encode()},
            {"sft/examples": len(self.accepted), "sft/dropped_too_long": 0},
        )

    def dapo(self, scale: str, salt: int = 0) -> Record:
        return self._model(
            "dapo",
            "rl",
            scale,
            {
                "model": f"data/models/sft/{self.agent}-{scale}",
                "queries": self._data("select", "queries.jsonl"),
                "index": self._data("prepare", "index"),
            },
            {"README.md": b"# RL\n", "weights.bin": f"rl {scale} {self.seed} {salt}".encode()},
            {"dapo/steps": 2},
            lines(steps([row["query_id"] for row in self.selected])),
        )

    def _model(
        self,
        stage: str,
        folder: str,
        scale: str,
        inputs: Mapping[str, str],
        files: Mapping[str, bytes],
        metrics: Mapping[str, Any],
        steps: bytes = b"",
    ) -> Record:
        cell = f"{self.agent}-{scale}"
        record = {"steps": (f"data/{stage}/{cell}/steps.jsonl", steps)} if steps else {}
        return self.world.run(
            stage,
            {"agent": self.agent, "scale": scale},
            inputs,
            {"model": (f"data/models/{folder}/{cell}", files), **record},
            [f"scales.{scale}.{stage}"],
            metrics,
        )

    def evaluate(self, scale: str, variant: str) -> Record:
        model = f"data/models/{variant}/{self.agent}-{scale}"
        seed = int(self.world.places[model][:6], 16)  # another model answers otherwise
        asked = enumerate(self.queries["eval"])
        rows = [trajectory(row, seed + number, variant) for number, row in asked]
        served = {"model": f"served-{variant}", "prompt_tokens": 7, "completion_tokens": 5}
        cell = f"{self.agent}-{scale}-{variant}"
        return self.world.run(
            "evaluate",
            {"agent": self.agent, "scale": scale, "variant": variant},
            {
                "model": model,
                "queries": self._data("prepare", "queries"),
                "index": self._data("prepare", "index"),
            },
            {"records": (f"data/evaluate/{cell}/records.jsonl", lines(rows))},
            ["evaluate"],
            {"evaluate/rollouts": len(rows), "evaluate/stop/failed": 0},
            facts={"endpoints": [served]},
        )

    def score(self, scale: str, *, passed: bool) -> Record:
        return self.world.run(
            "score",
            {"agent": self.agent, "scale": scale},
            {
                variant: f"data/evaluate/{self.agent}-{scale}-{variant}/records.jsonl"
                for variant in ("sft", "rl")
            },
            {"gate": (f"data/score/{self.agent}-{scale}/gate.json", b"{}\n")},
            ["score"],
            {"gate/rl_is_champion": int(passed)},
        )

    def all(self, scale: str = "tiny", *, salt: int = 0, passed: bool = True) -> None:
        """Run every stage once."""
        self.prepare()
        self.base(scale)
        self.rollout()
        self.filter(salt)
        self.screen(scale)
        self.select(salt)
        self.sft(scale, salt)
        self.dapo(scale, salt)
        for variant in ("sft", "rl"):
            self.evaluate(scale, variant)
        self.score(scale, passed=passed)

    def _data(self, stage: str, name: str) -> str:
        return f"data/{stage}/{self.agent}/{name}"


def small_world(root: Path, **changes: Any) -> tuple[World, Pipeline]:
    """Return a checkout in which one pipeline has run at scale tiny, committed."""
    world = World(root=root, **changes).begin()
    pipeline = Pipeline(world, Sizes())
    pipeline.all()
    world.save("results")
    return world, pipeline
