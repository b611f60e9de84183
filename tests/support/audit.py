"""A checkout with a made-up past: rows, DVC's cache, run records, dvc.lock and commits that all agree."""

import hashlib
import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from afm.ids import content_id
from afm.jsonl import write_json
from flows.audit.locate import object_path
from flows.hashing import Hasher, listing_md5
from flows.identity import Ingredients, params_tree
from flows.records import Record, sealed, write_record
from flows.store import VERSION, Manifest, Out

Row = dict[str, Any]
Content = bytes | Mapping[str, bytes]

CARD = """\
## Sources, licences and attribution

| source | package | version | licence of code | licence of data | origin of data |
|---|---|---|---|---|---|
| geography | [places](https://example.org) | 1.0 | MIT | CC-BY-4.0 | surveyors |
| elements | [atoms](https://example.org) | 2.0 | MIT | {elements} | chemists |
"""
CODE_FILES = 4
PIPELINE_GAP_S = 1000.0


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()


def query(number: int, split: str, *, agent: str = "mhqa") -> Row:
    """A row of `Query`."""
    question = f"What is fact {number} of {split}?"
    return {
        "schema_version": 1,
        "query_id": content_id([agent, question]),
        "agent": agent,
        "question": question,
        "answers": [f"answer {number}"],
        "source": "elements" if number % 4 == 0 else "geography",
        "split": split,
        "hops": 1 + number % 4,
        "phrasing": "plain",
        "entities": [],
        "solution": [],
        "entry_point": None,
        "tests": [],
    }


def trajectory(asked: Row, seed: int, policy: str = "teacher:scripted") -> Row:
    """A row of `Trajectory`."""
    identity = content_id([asked["query_id"], policy, seed])
    return {
        "schema_version": 1,
        "trajectory_id": identity,
        "query_id": asked["query_id"],
        "agent": asked["agent"],
        "question": asked["question"],
        "answers": asked["answers"],
        "policy": policy,
        "sample_index": 0,
        "seed": seed,
        "segments": [],
        "steps": [],
        "stop_reason": "answered",
        "num_tool_calls": 1,
        "usage": {"prompt_tokens": 9, "policy_tokens": 20, "observation_tokens": 30},
        "error": None,
    }


def ledger(item: str, query_id: str, reason: str, copies: int = 1, **values: Any) -> Row:
    """A row of `LedgerRow`."""
    kept = reason == "ok"
    return {
        "id": item,
        "query_id": query_id,
        "decision": "kept" if kept else "dropped",
        "reason": reason,
        "copies": copies if kept else 1,
        "values": values,
    }


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many queries each split has."""

    sft: int = 40
    rl: int = 16
    eval: int = 8


@dataclass(kw_only=True)
class World:
    """The checkout under construction."""

    root: Path
    code_files: int = CODE_FILES
    licence_of_elements: str = "public domain"
    lock: dict[str, Any] = field(default_factory=dict)
    clock: float = 1_700_000_000.0
    commit: str | None = None
    records: list[Record] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    """md5 by path, as it is now."""

    @property
    def cache(self) -> Path:
        return self.root / ".dvc" / "cache"

    def begin(self) -> "World":
        """Make the repository and its first commit."""
        self.root.mkdir(parents=True, exist_ok=True)
        files = {"params.yaml": yaml.safe_dump(PARAMS), "dvc.yaml": "stages: {}\n"}
        files |= {"constraints/pipeline.txt": "pins\n", "models/shipped/config.json": "{}\n"}
        files |= {f"stages/part{n}.py": f"# part {n}\n" for n in range(self.code_files)}
        files |= {".gitignore": "/.dvc\n/.lineage\n/.results\n/data\n"}
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("init", "-q", "-b", "main")
        self.save("begin")
        self.places["models/shipped"] = listing_md5({"config.json": md5(b"{}\n")})
        return self

    def save(self, message: str) -> None:
        """Write dvc.lock and commit."""
        if self.lock:
            (self.root / "dvc.lock").write_text(self.lock_text())
        self._git("add", "-A")
        who = ("-c", "user.name=x", "-c", "user.email=x@localhost")
        self._git(*who, "commit", "-q", "--allow-empty", "-m", message)
        self.commit = self._git("rev-parse", "HEAD")

    def lock_text(self) -> str:
        plain = json.loads(json.dumps({"schema": "2.0", "stages": self.lock}))  # no YAML anchors
        return yaml.safe_dump(plain, sort_keys=False)

    def put(self, content: bytes) -> str:
        """Add a file to the cache."""
        name = md5(content)
        self._object(name, content)
        return name

    def put_out(self, out: Content) -> str:
        """Add a file or folder to the cache."""
        if isinstance(out, bytes):
            return self.put(out)
        files = {name: self.put(content) for name, content in out.items()}
        listing = [{"md5": md5, "relpath": name} for name, md5 in sorted(files.items())]
        folder = listing_md5(files)
        self._object(folder, json.dumps(listing, sort_keys=True).encode())
        return folder

    def run(
        self,
        stage: str,
        axes: Mapping[str, str],
        inputs: Mapping[str, str],
        outputs: Mapping[str, tuple[str, Content]],
        params: Sequence[str],
        metrics: Mapping[str, Any],
        **changes: Any,
    ) -> Record:
        """Add a finished stage run: outputs to the cache, a record, an entry of dvc.lock."""
        code = {f"stages/part{n}.py": md5(f"# part {n}\n".encode()) for n in range(self.code_files)}
        measured = ("metrics", (f"data/{stage}/{'-'.join(axes.values())}/metrics.json", metrics))
        written = {name: (path, self.put_out(out)) for name, (path, out) in outputs.items()}
        text = json.dumps(metrics, sort_keys=True).encode()
        written["metrics"] = (measured[1][0], self.put_out(text))
        values = changes.pop("values", {})
        sections = {key: values.get(key, _cut(PARAMS, key)) for key in params}
        parts = Ingredients(
            stage=stage,
            axes=dict(axes),
            deps={name: self.places[path] for name, path in inputs.items()},
            code=code,
            params=sections,
            constraints=md5(b"pins\n"),
        )
        self.places |= dict(written.values())
        self.clock += PIPELINE_GAP_S / 16
        record = self._record(parts, inputs, dict(written.values()), metrics, changes)
        write_record(self.root / ".lineage", record)
        self._enter(parts, inputs, written, record)
        self.records.append(record)
        return record

    def checkout(self) -> None:
        """Put what dvc.lock names into the workspace, as files of their own."""
        for path, name in self.places.items():
            if path.startswith("data/"):
                self._place(name, self.root / path)

    def keep(self, record: Record) -> Path:
        """Put a finished result into the result store, as submit seals one."""
        folder = self.root / ".results" / record.identity
        words = self.lock[record.cell]["cmd"].split()
        fields = {path: word[6:] for word, path in pairwise(words) if word.startswith("--out-")}
        outs = {}
        for path, name in record.outs.items():
            place = f"{fields[path]}/{Path(path).name}"
            self._place(name, folder / place)
            outs[fields[path]] = Out(
                path=place, md5=name, files=Hasher(folder).files(folder / place)
            )
        manifest = Manifest(version=VERSION, identity=record.identity, outs=outs)
        write_json(folder / "record.json", record.model_dump(mode="json"))
        write_json(folder / "manifest.json", manifest.model_dump())
        return folder

    def _place(self, name: str, target: Path) -> None:
        source = object_path(self.cache, name)
        if name.endswith(".dir"):
            for row in json.loads(source.read_bytes()):
                self._place(row["md5"], target / row["relpath"])
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())

    def _record(
        self,
        parts: Ingredients,
        inputs: Mapping[str, str],
        outs: Mapping[str, str],
        metrics: Mapping[str, Any],
        changes: Mapping[str, Any],
    ) -> Record:
        cell = "@".join(filter(None, (parts.stage, "-".join(parts.axes.values()))))
        known: dict[str, Any] = {
            "identity": parts.identity,
            "stage": parts.stage,
            "cell": cell,
            "axes": parts.axes,
            "params": params_tree(parts.params),
            "code": parts.code,
            "deps": {path: parts.deps[name] for name, path in inputs.items()},
            "outs": dict(outs),
            "metrics": dict(metrics),
            "facts": {},
            "constraints": parts.constraints,
            "environment": "pipeline",
            "python": "3.11.7",
            "executor": "local",
            "host": "laptop",
            "pid": 1,
            "git_commit": self.commit,
            "git_dirty": False,
            "pipeline_run": "f" * 32,
            "started": self.clock,
            "ended": self.clock + 30,
            "wall_s": 30.0,
            "outcome": "succeeded",
            "exit_code": 0,
            "log_tail": "",
        }
        return sealed(Record(**known | dict(changes)))

    def _enter(
        self,
        parts: Ingredients,
        inputs: Mapping[str, str],
        written: Mapping[str, tuple[str, str]],
        record: Record,
    ) -> None:
        words = ["bin/submit", parts.stage]
        words += [word for axis, value in parts.axes.items() for word in (f"--{axis}", value)]
        for name, path in inputs.items():
            words += [f"--{name.replace('_', '-')}", path]
        for name, (path, _) in written.items():
            words += [f"--out-{name.replace('_', '-')}", path]
        deps = record.deps | record.code
        self.lock[record.cell] = {
            "cmd": " ".join(words),
            "deps": [{"path": path, "hash": "md5", "md5": deps[path]} for path in sorted(deps)],
            "params": {"params.yaml": dict(parts.params)},
            "outs": [
                {"path": path, "hash": "md5", "md5": md5}
                for path, md5 in sorted(record.outs.items())
            ],
        }

    def _object(self, name: str, content: bytes) -> None:
        path = object_path(self.cache, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(content)

    def _git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True)
        return done.stdout.decode().strip()


PARAMS: dict[str, Any] = {
    "prepare": {
        "seed": 17,
        "sources": {"mhqa": ["geography", "elements"]},
        "exclude": {"query_ids": [], "sources": []},
    },
    "agents": {"mhqa": {"reward": "exact_match", "tools": ["wiki_search"]}},
    "teacher": {"name": "scripted", "kind": "scripted"},
    "rollout": {"seed": 23},
    "filter": {"seed": 29},
    "screen": {"num_samples": 4},
    "select": {"num_queries": 8, "max_pass_rate": 0.3},
    "evaluate": {"seed": 41},
    "score": {"seed": 43},
    "scales": {
        name: {"base": {"seed": 1}, "sft": {"lr": 0.1}, "dapo": {"lr": 0.01}}
        for name in ("tiny", "small")
    },
}


def _cut(tree: Mapping[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node[part]
    return node


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

    def data(self, stage: str, name: str) -> str:
        return f"data/{stage}/{self.agent}/{name}"

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
                "queries": (self.data("prepare", "queries"), files),
                "corpus": (self.data("prepare", "corpus.jsonl"), b"{}\n"),
                "index": (self.data("prepare", "index"), {"passages.jsonl": b"{}\n"}),
                "card": (self.data("prepare", "card.md"), card),
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
            {"queries": self.data("prepare", "queries"), "index": self.data("prepare", "index")},
            {
                "trajectories": (
                    self.data("rollout", "trajectories.jsonl"),
                    lines(self.trajectories),
                ),
                "failures": (self.data("rollout", "failures.jsonl"), lines(failed)),
            },
            ["rollout", "teacher", f"agents.{self.agent}"],
            {"rollout/rollouts": len(self.trajectories) + 1, "rollout/failed": 1},
        )

    def filter(self, salt: int = 0) -> Record:
        rows, self.accepted = [], []
        for number, row in enumerate(self.trajectories):
            reason = ("ok", "ok", "wrong_answer", "ok", "no_reflection")[(number + salt) % 5]
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
                "queries": self.data("prepare", "queries"),
                "trajectories": self.data("rollout", "trajectories.jsonl"),
            },
            {
                "accepted": (self.data("filter", "accepted.jsonl"), lines(self.accepted)),
                "ledger": (self.data("filter", "ledger.jsonl"), lines(rows)),
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
        rates = [
            {
                "schema_version": 1,
                "query_id": row["query_id"],
                "num_samples": 4,
                "num_correct": number % 3,
                "pass_rate": number % 3 / 4,
            }
            for number, row in enumerate(self.queries["rl"])
        ]
        return self.world.run(
            "screen",
            {"agent": self.agent, "scale": scale},
            {
                "queries": self.data("prepare", "queries"),
                "model": f"data/models/base/{self.agent}-{scale}",
            },
            {"pass_rates": (self.data("screen", "pass_rates.jsonl"), lines(rates))},
            ["screen", f"agents.{self.agent}"],
            {"screen/queries": len(rates), "screen/samples": 4 * len(rates)},
            cell=f"screen@{self.agent}",
        )

    def select(self, salt: int = 0) -> Record:
        rows, self.selected = [], []
        for number, row in enumerate(self.queries["rl"]):
            reason = (
                "too_easy"
                if number % 3 == 2
                else ("not_chosen" if (number + salt) % 4 == 0 else "ok")
            )
            rows.append(ledger(row["query_id"], row["query_id"], reason, pass_rate=number % 3 / 4))
            self.selected += [row] if reason == "ok" else []
        return self.world.run(
            "select",
            {"agent": self.agent},
            {
                "queries": self.data("prepare", "queries"),
                "pass_rates": self.data("screen", "pass_rates.jsonl"),
                "accepted": self.data("filter", "accepted.jsonl"),
            },
            {
                "selected": (self.data("select", "queries.jsonl"), lines(self.selected)),
                "ledger": (self.data("select", "ledger.jsonl"), lines(rows)),
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
                "queries": self.data("prepare", "queries"),
                "corpus": self.data("prepare", "corpus.jsonl"),
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
                "accepted": self.data("filter", "accepted.jsonl"),
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
                "queries": self.data("select", "queries.jsonl"),
                "index": self.data("prepare", "index"),
            },
            {"README.md": b"# RL\n", "weights.bin": f"rl {scale} {self.seed} {salt}".encode()},
            {"dapo/steps": 2},
        )

    def _model(
        self,
        stage: str,
        folder: str,
        scale: str,
        inputs: Mapping[str, str],
        files: Mapping[str, bytes],
        metrics: Mapping[str, Any],
    ) -> Record:
        return self.world.run(
            stage,
            {"agent": self.agent, "scale": scale},
            inputs,
            {"model": (f"data/models/{folder}/{self.agent}-{scale}", files)},
            [f"scales.{scale}.{stage}"],
            metrics,
        )

    def evaluate(self, scale: str, variant: str) -> Record:
        rows = [
            trajectory(row, self.seed + n, variant) for n, row in enumerate(self.queries["eval"])
        ]
        return self.world.run(
            "evaluate",
            {"agent": self.agent, "scale": scale, "variant": variant},
            {
                "model": f"data/models/{variant}/{self.agent}-{scale}",
                "queries": self.data("prepare", "queries"),
                "index": self.data("prepare", "index"),
            },
            {
                "records": (
                    f"data/evaluate/{self.agent}-{scale}-{variant}/records.jsonl",
                    lines(rows),
                )
            },
            ["evaluate"],
            {"evaluate/rollouts": len(rows)},
            facts={
                "endpoints": [
                    {"model": f"served-{variant}", "prompt_tokens": 7, "completion_tokens": 5}
                ]
            },
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


def small_world(root: Path, **changes: Any) -> tuple[World, Pipeline]:
    """Return a checkout in which one pipeline has run at scale tiny, committed."""
    world = World(root=root, **changes).begin()
    pipeline = Pipeline(world, Sizes())
    pipeline.all()
    world.save("results")
    return world, pipeline
