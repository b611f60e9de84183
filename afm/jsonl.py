"""Reading and writing JSON Lines: typed rows, atomic files, errors that name file and line."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from afm.errors import UserError

RowT = TypeVar("RowT", bound=BaseModel)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a sibling first, then one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    sibling.write_text(text, encoding="utf-8")
    sibling.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document with sorted keys, indented, atomically. NaN is written as null."""
    text = json.dumps(_without_nan(value), sort_keys=True, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON document.

    Raises:
        UserError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error


def write_rows(path: Path, rows: Iterable[BaseModel]) -> int:
    """Write rows as JSON Lines with sorted keys, atomically.

    Returns:
        The number of rows written.
    """
    lines = [
        json.dumps(row.model_dump(mode="json"), sort_keys=True, ensure_ascii=False) for row in rows
    ]
    write_text(path, "".join(line + "\n" for line in lines))
    return len(lines)


def read_rows(path: Path, row_type: type[RowT]) -> list[RowT]:
    """Read all rows of a JSON Lines file; see `iter_rows`."""
    return list(iter_rows(path, row_type))


def iter_rows(path: Path, row_type: type[RowT]) -> Iterator[RowT]:
    """Yield the rows of a JSON Lines file as `row_type`.

    Raises:
        UserError: the file is missing, or a line is malformed; the message names file, line and field.
    """
    try:
        stream = path.open(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    with stream:
        for number, line in enumerate(stream, start=1):
            yield _parse(path, number, line, row_type)


def _parse(path: Path, number: int, line: str, row_type: type[RowT]) -> RowT:
    try:
        return row_type.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the row"
        raise UserError(
            f"{path}:{number}: malformed {row_type.__name__}: {where}: {first['msg']}; "
            f"got {repr(first['input'])[:80]}; mend the line, or run what wrote the file again"
        ) from error


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
