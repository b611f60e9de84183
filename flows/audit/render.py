"""Answers as text for people and as JSON for machines."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

SHORT = 12
"""Characters of a hash that a line shows; JSON has all of it."""
SHOWN = 10
"""Entries of a long list that are shown."""


def as_json(answer: Any) -> str:
    """Serialise an answer."""
    return json.dumps(dataclasses.asdict(answer), indent=2, sort_keys=True, ensure_ascii=False)


def short(value: str | None) -> str:
    """Cut a hash for reading."""
    if not value:
        return "none"
    return value[:SHORT] + (".dir" if value.endswith(".dir") else "")


def moment(seconds: float) -> str:
    """Write a time in UTC."""
    if not seconds:
        return "unknown time"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """Write a length of time."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def listed(items: Sequence[str], *, all_of_them: bool = False) -> str:
    """Join names, and count those beyond the first few."""
    shown = items if all_of_them else items[:SHOWN]
    more = f" and {len(items) - len(shown)} more" if len(items) > len(shown) else ""
    return ", ".join(shown) + more


def counts(values: Mapping[str, int]) -> str:
    """Write counts by name, the largest first."""
    return ", ".join(
        f"{n} {name}" for name, n in sorted(values.items(), key=lambda kv: (-kv[1], kv[0]))
    )


def fields(values: Mapping[str, Any]) -> str:
    """Write values by name on one line."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return f"({fields(value)})"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def indent(lines: Iterable[str], by: str = "  ") -> Iterator[str]:
    """Shift lines to the right."""
    return (by + line for line in lines)
