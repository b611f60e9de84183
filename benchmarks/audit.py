"""How long `afm audit` takes to answer: one JSON line per figure.

On the checkout that it is run in, if a pipeline has finished there, and on a made-up past of 10,000 runs and 1,000,000
ledger rows (seeded; about 700 MB in a temporary folder). Each command runs in a process of its own, its start included,
on two cores and with at most 2 GiB of memory.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks._figures import Figure, at_most
from tests.support.audit_history import History, long_past

NUM_RUNS, NUM_ROWS = 10_000, 1_000_000
MEMORY_BYTES = 2 << 30
NUM_CORES = 2
EXPORT_S = 5
"""Bar of an export [s]: it hashes as `verify` does, then again with sha256."""
REPEATS = 3
REPO = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one command took."""

    seconds: float
    peak_mib: float


def measure(root: Path, words: Sequence[str]) -> Cost:
    """Run one `afm audit` command within the limits."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "audit", *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.DEVNULL,
        preexec_fn=_limit,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"afm audit {' '.join(words)} failed"
    return Cost(seconds=time.monotonic() - began, peak_mib=usage.ru_maxrss / 1024)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])


def best(root: Path, words: Sequence[str]) -> Cost:
    """Return the fastest of several runs."""
    return min((measure(root, words) for _ in range(REPEATS)), key=lambda cost: cost.seconds)


def of_result(root: Path) -> Iterator[Figure]:
    """Measure every command on the finished pipeline of a checkout."""
    from flows.audit.index import ask
    from flows.workspace import Workspace

    place = Workspace(root=root, home=root)
    models = [one for one in ask(place, lambda i: i.graph.models()) if one.run.stage == "dapo"]
    if not models:
        print("no RL model here, so only the made-up past is measured", file=sys.stderr)
        return
    model = models[-1].run.cell
    source = next(path for path in models[-1].run.deps if path.endswith("queries.jsonl"))
    query = json.loads((root / source).read_text().splitlines()[0])["query_id"]
    for name, words in {
        "explain": (model,),
        "query": (query,),
        "diff": (model.replace("dapo", "sft"), model),
        "impact": (query,),
        "verify": (model,),
    }.items():
        yield at_most(f"audit_{name}", best(root, [name, *words]).seconds, 2, "s")
    with tempfile.TemporaryDirectory() as folder:
        bundle = str(Path(folder) / "bundle")
        made = measure(root, ["export", model, "-o", bundle])
        yield at_most("audit_export", made.seconds, EXPORT_S, "s")
        checked = best(root, ["verify", "--bundle", bundle])
        yield at_most("audit_verify_bundle", checked.seconds, 2, "s")


def of_long_past(past: History) -> Iterator[Figure]:
    """Measure on a made-up past: the first index, answers, and an answer after more runs."""
    first = measure(past.root, ["explain", past.model])
    yield at_most("audit_first_index", first.seconds, 300, "s")
    peak = first.peak_mib
    for name, words in {
        "explain": ["explain", past.model],
        "query": ["query", past.query_id],
        "query_all": ["query", past.query_id, "--all"],
        "impact_query": ["impact", past.query_id],
        "impact_file": ["impact", past.accepted],
        "impact_source": ["impact", "elements"],
    }.items():
        cost = best(past.root, words)
        peak = max(peak, cost.peak_mib)
        yield at_most(f"audit_{name}_long_past", cost.seconds, 5, "s")
    past.pipeline.filter(NUM_RUNS)
    past.pipeline.sft("tiny", NUM_RUNS)
    past.world.save("one more")
    after = measure(past.root, ["explain", "sft@mhqa-tiny"])
    yield at_most("audit_explain_after_new_runs", after.seconds, 5, "s")
    yield at_most("audit_peak_memory", max(peak, after.peak_mib), 2048, "MiB")


def figures(root: Path) -> Iterator[Figure]:
    """Yield every figure."""
    yield from of_result(root)
    with tempfile.TemporaryDirectory() as folder:
        past = long_past(Path(folder) / "past", runs=NUM_RUNS, ledger_rows=NUM_ROWS)
        print(f"{past.runs} runs, {past.ledger_rows} ledger rows", file=sys.stderr)
        yield from of_long_past(past)


def main() -> None:
    """Print the figures; exit 1 where one misses its bar."""
    missed = False
    for figure in figures(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()):
        row = asdict(figure)
        row["pass"] = row.pop("passed")
        missed |= not figure.passed
        print(json.dumps(row), flush=True)
    sys.exit(missed)


if __name__ == "__main__":
    main()
