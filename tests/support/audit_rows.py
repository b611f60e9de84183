"""Made-up rows and params in the form that the stages write and read."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from afm.ids import content_id

Row = dict[str, Any]

CARD = """\
## Sources, licences and attribution

| source | package | version | licence of code | licence of data | origin of data |
|---|---|---|---|---|---|
| geography | [places](https://example.org) | 1.0 | MIT | CC-BY-4.0 | surveyors |
| elements | [atoms](https://example.org) | 2.0 | MIT | {elements} | chemists |
"""

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


def pass_rates(queries: Sequence[Row]) -> list[Row]:
    """Rows of `PassRate`: none, one or two of four samples are right, in turn."""
    return [
        {
            "schema_version": 1,
            "query_id": row["query_id"],
            "num_samples": 4,
            "num_correct": number % 3,
            "pass_rate": number % 3 / 4,
        }
        for number, row in enumerate(queries)
    ]


def steps(ids: Sequence[str]) -> list[Row]:
    """Two steps of dapo: the first query is drawn in both, trained on in the second alone."""
    fates = [
        {"trained": ids[1:3], "surplus": [], "without_gradient": ids[:1]},
        {"trained": ids[:2], "surplus": ids[2:3], "without_gradient": []},
    ]
    return [{"step": number, "queries": fate} for number, fate in enumerate(fates, start=1)]
