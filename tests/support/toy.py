"""A checkout of two toy stages around the real submit, store, executor and DVC: a second each instead of minutes."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TRACE = "AFM_TOY_TRACE"
PACE = "AFM_TOY_PACE"
HOG = "AFM_TOY_HOG"

ALPHA = '''
"""Toy: count to num_queries with a checkpoint per row, beside a helper in a session of its own and a fork."""

import os, subprocess, sys, time
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from afm.jsonl import write_json, write_text
from afm.params.screening import SelectParams
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    select: SelectParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    source: Path


@dataclass(frozen=True, kw_only=True)
class Outputs:
    rows: Path
    model: Path
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    trace = Path(os.environ["AFM_TOY_TRACE"])
    pace = float(os.environ.get("AFM_TOY_PACE", "0"))
    with trace.open("a") as log:
        log.write(f"begin {os.getpid()}\\n")
    if inputs.source.read_text().startswith("bad"):
        raise UserError("source: must not start with 'bad'; write something else")
    hog = bytearray(int(os.environ.get("AFM_TOY_HOG", "0")) << 20)
    if hog:
        time.sleep(5)
    children = []
    if pace:
        code = "import time; time.sleep(300)"
        children.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
    checkpoint = context.scratch / "checkpoint"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"continuing from {done}", flush=True)
    for number in range(done, params.select.num_queries):
        time.sleep(pace)
        write_text(checkpoint, str(number + 1))
        print("row", number, flush=True)
    write_text(outputs.rows, "".join(f"{n} {inputs.source.read_text()}\\n" for n in range(params.select.num_queries)))
    write_text(outputs.model / "weights" / "a.bin", "a" * 10)
    write_text(outputs.model / "config.json", context.agent)
    write_json(outputs.metrics, {"rows": params.select.num_queries})
    with trace.open("a") as log:
        log.write(f"end {os.getpid()}\\n")
    # No tidying up here: the executor must find what a stage leaves behind.


STAGE = Stage(name="alpha", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=("agent",))

if __name__ == "__main__":
    main(STAGE)
'''

BETA = '''
"""Toy: copy alpha's rows."""

from dataclasses import dataclass
from pathlib import Path

from afm.jsonl import write_json, write_text
from afm.params.evaluation import ReportParams
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    report: ReportParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    rows: Path
    model: Path


@dataclass(frozen=True, kw_only=True)
class Outputs:
    copy: Path
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    write_text(outputs.copy, inputs.rows.read_text().upper())
    write_json(outputs.metrics, {"copied": 1})


STAGE = Stage(name="beta", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=())

if __name__ == "__main__":
    main(STAGE)
'''

DVC_YAML = """\
# Comment that a rewrite keeps.
stages:
  alpha:
    matrix:
      agent: [mhqa]
    cmd: >-
      bin/submit alpha --agent ${item.agent}
      --source source.txt
      --out-rows data/alpha/${item.agent}/rows.txt
      --out-model data/models/${item.agent}
      --out-metrics data/alpha/${item.agent}/metrics.json
    params:
      - select
    deps:
      - stages/alpha.py
      - source.txt
    outs:
      - data/alpha/${item.agent}/rows.txt
      - data/models/${item.agent}
    metrics:
      - data/alpha/${item.agent}/metrics.json

  beta:
    cmd: >-
      bin/submit beta
      --rows data/alpha/mhqa/rows.txt
      --model data/models/mhqa
      --out-copy data/beta/copy.txt
      --out-metrics data/beta/metrics.json
    params:
      - report
    deps:
      - stages/beta.py
      - data/alpha/mhqa/rows.txt
      - data/models/mhqa
    outs:
      - data/beta/copy.txt
    metrics:
      - data/beta/metrics.json
"""

ALPHA_WORDS = [
    *("alpha", "--agent", "mhqa", "--source", "source.txt"),
    *("--out-rows", "data/alpha/mhqa/rows.txt", "--out-model", "data/models/mhqa"),
    *("--out-metrics", "data/alpha/mhqa/metrics.json"),
]


class Toy:
    """One toy checkout."""

    def __init__(self, root: Path, *, num_rows: int = 3) -> None:
        """Make it, with as many rows for alpha to write."""
        self.root = root
        self.python = REPO / ".venv" / "bin" / "python"
        self._copy_code()
        (root / "stages" / "alpha.py").write_text(ALPHA)
        (root / "stages" / "beta.py").write_text(BETA)
        (root / "dvc.yaml").write_text(DVC_YAML)
        (root / "source.txt").write_text("hello")
        (root / ".venv").symlink_to(REPO / ".venv")
        self.set_rows(num_rows)
        self.trace = root / ".scratch" / "trace"
        self.trace.parent.mkdir()
        self.extra: dict[str, str] = {}
        """Variables on top, for every command."""

    def _copy_code(self) -> None:
        ignore = shutil.ignore_patterns("__pycache__", "pretrain_text")
        for name in ("afm", "flows", "bin", "constraints"):
            shutil.copytree(REPO / name, self.root / name, ignore=ignore)
        (self.root / "stages").mkdir()
        for name in ("__init__.py", "_stage.py", "_closure.py"):
            shutil.copy(REPO / "stages" / name, self.root / "stages" / name)
        for name in ("params.yaml", ".gitignore", ".dvcignore"):
            shutil.copy(REPO / name, self.root / name)

    def set_rows(self, count: int) -> None:
        """Set the one param that alpha reads."""
        path = self.root / "params.yaml"
        lines = path.read_text().splitlines(keepends=True)
        where = next(n for n, line in enumerate(lines) if line.startswith("  num_queries:"))
        lines[where] = f"  num_queries: {count}\n"
        path.write_text("".join(lines))

    def environment(self, pace: float = 0.0) -> dict[str, str]:
        """Return an environment that knows none of ours: no PATH to them, no lineage."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/tmp"),
            "AFM_LINEAGE": "0",
            "DVC_NO_ANALYTICS": "1",
            TRACE: str(self.trace),
            PACE: str(pace),
            "OMP_NUM_THREADS": "1",
        } | self.extra

    def start(self, *words: str, pace: float = 0.0) -> "subprocess.Popen[str]":
        """Start a command in the checkout."""
        return subprocess.Popen(
            words,
            cwd=self.root,
            env=self.environment(pace),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_hang_up_ends,  # a run under nohup ignores it, and children inherit that
        )

    def submit(self, *words: str, pace: float = 0.0) -> "subprocess.Popen[str]":
        """Start bin/submit; alpha's own command where no words are given."""
        return self.start("bin/submit", *(words or ALPHA_WORDS), pace=pace)

    def run(self, *words: str, pace: float = 0.0) -> tuple[int, str]:
        """Run a command to its end; its exit code and output."""
        process = self.start(*words, pace=pace)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def afm(self, *words: str, pace: float = 0.0) -> "subprocess.Popen[str]":
        """Start the `afm` command."""
        return self.start(str(self.python), "-m", "flows.cli", *words, pace=pace)

    def git_alone(self) -> None:
        """Make it a repository of git with one commit."""
        self._repository()

    def git_and_dvc(self) -> None:
        """Make it a repository of git and DVC with one commit."""
        python = str(self.python)
        self._repository(
            (python, "-m", "dvc", "init", "-q"),
            (python, "-m", "dvc", "config", "cache.type", "reflink,hardlink"),
            (python, "-m", "dvc", "config", "core.analytics", "false"),
            (python, "-m", "stages._closure", "--write"),
        )

    def _repository(self, *between: tuple[str, ...]) -> None:
        commands = [
            ("git", "init", "-q"),
            ("git", "config", "user.email", "toy@example.org"),
            ("git", "config", "user.name", "toy"),
            *between,
            ("git", "add", "-A"),
            ("git", "commit", "-q", "-m", "toy"),
        ]
        for command in commands:
            code, output = self.run(*command)
            assert code == 0, output

    def commit(self) -> None:
        """Commit what has been changed: a cluster takes nothing else."""
        for words in (("add", "-A"), ("commit", "-q", "-m", "change", "--allow-empty")):
            subprocess.run(["git", *words], cwd=self.root, check=True)

    def dvc(self, *words: str) -> tuple[str, ...]:
        """Return a dvc command line."""
        return (str(self.python), "-m", "dvc", *words)

    def job(self) -> dict[str, object]:
        """Return what the executor knows of the one job that is running."""
        import json

        paths = list((self.root / ".scratch").glob("*/job.json"))
        return dict(json.loads(paths[0].read_text())) if paths else {}

    def marked(self) -> list[int]:
        """Return the processes of any job of this checkout that are alive."""
        from flows.executors.processes import members

        return [process.pid for process in members(str(self.root.resolve()))]

    def writers(self) -> list[str]:
        """Return alpha's own account of its begins and ends."""
        return [line.split()[0] for line in self.trace.read_text().splitlines()]


def _hang_up_ends() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
