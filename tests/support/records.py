"""Run records of a mhqa-tiny cell."""

from typing import Any

from flows.records import Record

BASE = "a" * 32 + ".dir"
MODEL = "b" * 32 + ".dir"


def record(stage: str, **changes: Any) -> Record:
    """A finished record of one mhqa-tiny cell."""
    values: dict[str, Any] = {
        "identity": f"id-{stage}",
        "stage": stage,
        "cell": f"{stage}@mhqa-tiny",
        "axes": {"agent": "mhqa", "scale": "tiny"},
        "params": {f"scales.tiny.{stage}": {"lr": 0.1, "layers": [1, 2]}},
        "code": {},
        "deps": {"data/models/base/mhqa-tiny": BASE},
        "outs": {"data/models/sft/mhqa-tiny": MODEL},
        "metrics": {f"{stage}/loss": 0.5, f"{stage}/undefined": None},
        "facts": {},
        "constraints": "d" * 32,
        "environment": "pipeline",
        "python": "3.11",
        "executor": "local",
        "host": "laptop",
        "pid": 1,
        "git_commit": "e" * 40,
        "git_dirty": True,
        "pipeline_run": "f" * 32,
        "started": 100.0,
        "ended": 160.0,
        "wall_s": 60.0,
        "outcome": "succeeded",
        "exit_code": 0,
        "log_tail": "",
    }
    return Record(**values | changes)
