"""What a finished demo must show, measured on what it left behind: one JSON line per figure.

Run it in a checkout after `make demo`. A figure that cannot be read is an error, not a pass.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from afm.jsonl import read_json
from benchmarks._figures import Figure, at_least, at_most, print_figures
from flows.lock_file import read_lock
from flows.records import read_records

CELL = "mhqa-tiny"
REASONS = (
    "too_few_hops",
    "unfinished",
    "wrong_answer",
    "redundant_call",
    "instruction_violation",
    "no_reflection",
)
"""Every reason for which the filter can drop a trajectory of the scripted teacher."""


def learning(root: Path) -> Iterator[Figure]:
    """Yield the gains of SFT and RL, and what is left of them with other questions' observations."""
    score = read_json(root / "data" / "score" / CELL / "metrics.json")
    yield at_least("sft_minus_base_low", score["eval/mhqa/sft_minus_base_low"], 0.20)
    yield at_least("rl_minus_sft_low", score["eval/mhqa/rl_minus_sft_low"], 0.0)
    for variant in ("sft", "rl"):
        real = score[f"eval/mhqa/{variant}/avg_at_k"]
        shuffled = score[f"eval/mhqa/{variant}_shuffled/avg_at_k"]
        yield Figure(
            name=f"{variant}_shuffled",
            value=shuffled,
            unit="avg@k",
            baseline=real,
            ratio=shuffled / real,
            target="ratio < 0.25",
            passed=shuffled < 0.25 * real,
        )


def data(root: Path) -> Iterator[Figure]:
    """Yield the screened-out share and the rows that each filter reason dropped."""
    share = read_json(root / "data" / "select" / "mhqa" / "metrics.json")[
        "select/screened_out_share"
    ]
    yield at_least("screened_out_share", share, 0.10)
    yield at_most("screened_out_share", share, 0.60, "share")
    filtered = read_json(root / "data" / "filter" / "mhqa" / "metrics.json")
    for reason in REASONS:
        yield at_least(f"dropped_{reason}", filtered[f"filter/dropped/{reason}"], 0, "rows")


def time_taken(root: Path) -> Iterator[Figure]:
    """Yield the wall time of the whole run and of one that has nothing to do."""
    records = {record.cell: record for record in read_records(root)}
    ran = [records[cell] for cell in read_lock(root)]
    minutes = (max(r.ended for r in ran) - min(r.started for r in ran)) / 60
    yield at_most("demo_wall", minutes, 25, "min")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro"], cwd=root, capture_output=True, text=True, check=True
    )
    assert "up to date" in done.stdout, done.stdout
    yield at_most("noop_repro", time.monotonic() - began, 5, "s")


def figures(root: Path) -> Iterator[Figure]:
    """Yield every figure."""
    yield from learning(root)
    yield from data(root)
    yield from time_taken(root)


if __name__ == "__main__":
    print_figures(figures(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
