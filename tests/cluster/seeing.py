"""What a case expects of objects: paths, and values to compare with."""

import re
from typing import Any

STEP = re.compile(r"([^.\[\]]+)|\[([^\]]+)\]")


def lookup(value: Any, path: str) -> Any:
    """Follow `a.b[0].c[NAME]`; what is not there is None."""
    for key, index in STEP.findall(path):
        if isinstance(value, list):
            value = _item(value, index)
        elif isinstance(value, dict):
            value = value.get(key or index)
        else:
            return None
    return value


def _item(rows: list[Any], index: str) -> Any:
    if index.isdigit():
        return rows[int(index)] if int(index) < len(rows) else None
    return next((row for row in rows if index in (row.get("type"), row.get("name"))), None)


def fits(found: Any, wanted: Any) -> bool:
    """Compare: "~text" is contained, a list names what is allowed, None is absent."""
    if isinstance(wanted, list):
        return any(fits(found, one) for one in wanted)
    if isinstance(wanted, str) and wanted.startswith("~"):
        return wanted[1:] in str(found or "")
    return bool(found == wanted) or (wanted is None and found in (0, [], {}, ""))


def misfits(value: Any, wanted: dict[str, Any]) -> list[str]:
    """Say what is otherwise."""
    return [
        f"{path} is {lookup(value, path)!r}, not {want!r}"
        for path, want in wanted.items()
        if not fits(lookup(value, path), want)
    ]
