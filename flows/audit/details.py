"""What a record says beyond the chain: where and by whom, at what cost, who taught and who judged."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from flows.records import Record

JUDGING = frozenset({"filter", "screen", "dapo", "score"})
"""Stages that grade answers, with the reward that their agent's section names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What a run, or a chain of them, took."""

    wall_s: float
    gpu_s: float | None
    """[GPU s]; None where nobody counted GPUs."""
    prompt_tokens: int
    completion_tokens: int
    money: float | None
    """Currency units, as `gpu_price` and the endpoints' prices have it; None where nothing is priced."""


def read_record(path: Path, content: str) -> Record:
    """Read the record that an answer rests on.

    Raises:
        UserError: it has changed since it was looked up.
    """
    body = path.read_bytes()
    if hashlib.md5(body).hexdigest() != content:
        raise UserError(f"{path} changed while it was read; ask again")
    return Record.model_validate_json(body)


def costs(record: Record) -> Costs:
    """Return what one run took."""
    served = endpoints(record)
    return Costs(
        wall_s=record.wall_s,
        gpu_s=record.gpu_s,
        prompt_tokens=sum(int(one.get("prompt_tokens", 0)) for one in served),
        completion_tokens=sum(int(one.get("completion_tokens", 0)) for one in served),
        money=record.cost,
    )


def total(parts: Sequence[Costs]) -> Costs:
    """Add up; what nobody counted anywhere stays None."""
    gpu = [one.gpu_s for one in parts if one.gpu_s is not None]
    money = [one.money for one in parts if one.money is not None]
    return Costs(
        wall_s=sum(one.wall_s for one in parts),
        gpu_s=sum(gpu) if gpu else None,
        prompt_tokens=sum(one.prompt_tokens for one in parts),
        completion_tokens=sum(one.completion_tokens for one in parts),
        money=sum(money) if money else None,
    )


def endpoints(record: Record) -> list[Mapping[str, Any]]:
    """Return the endpoints that the stage used, with the model as the server named it."""
    return list(record.facts.get("endpoints", ()))


def teacher(record: Record) -> str | None:
    """Return who demonstrated, for a stage with a teacher."""
    section = record.params.get("teacher")
    return f"{section['name']} ({section['kind']})" if section else None


def judge(record: Record) -> str | None:
    """Return the reward that graded answers, for a stage that grades."""
    agent = record.axes.get("agent")
    if record.stage not in JUDGING or agent is None:
        return None
    section: Any = record.params.get("agents", {}).get(agent, {})
    name: str | None = section.get("reward")
    return name


def sources(record: Record) -> list[str]:
    """Return the data sources that a prepare run drew from."""
    section: Any = record.params.get("prepare") if record.stage == "prepare" else None
    if not section:
        return []
    left_out = section.get("exclude", {}).get("sources", ())
    return [name for name in section["sources"][record.axes["agent"]] if name not in left_out]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return leaves by dotted key."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return found
