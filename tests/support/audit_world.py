"""A checkout under construction: DVC's cache, run records, dvc.lock and commits that all agree."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from afm.jsonl import write_json
from flows.audit.locate import object_path
from flows.hashing import Hasher, listing_md5
from flows.identity import Ingredients, params_tree
from flows.records import Record, sealed, write_record
from flows.store import VERSION, Manifest, Out
from flows.workspace import Workspace
from tests.support.audit_rows import PARAMS, md5

Content = bytes | Mapping[str, bytes]

CODE_FILES = 4
STAGE_GAP_S = 60.0
"""Between the starts of two runs."""


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
        self.clock += STAGE_GAP_S
        record = self._record(parts, inputs, dict(written.values()), metrics, changes)
        write_record(self.root / ".lineage", record)
        self._enter(parts, inputs, written, record)
        self.records.append(record)
        return record

    def folder(self, path: str) -> str:
        """Return the md5 of a folder of outputs."""
        files: dict[str, str] = {}
        for place, name in self.places.items():
            inner = place.removeprefix(f"{path}/")
            if inner != place:
                assert not name.endswith(".dir")
                files[inner] = name
        return listing_md5(files)

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


def _cut(tree: Mapping[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node[part]
    return node


def place(world: World) -> Workspace:
    """Return where an audit looks."""
    return Workspace(root=world.root, home=world.root)
