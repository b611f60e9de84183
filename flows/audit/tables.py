"""The index's tables. Everything hangs on a content hash."""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

SCHEMA = (
    "CREATE TABLE runs (key VARCHAR, body VARCHAR)",  # md5 of a record file or of a lock entry
    "CREATE TABLE code (key VARCHAR, path VARCHAR, md5 VARCHAR)",
    "CREATE TABLE locks (blob VARCHAR, key VARCHAR)",
    "CREATE TABLE files (id INTEGER, md5 VARCHAR, format VARCHAR, num_rows INTEGER)",
    "CREATE TABLE items (file INTEGER, line INTEGER, query_id VARCHAR, item_id VARCHAR, "
    "source VARCHAR, dropped VARCHAR, detail VARCHAR)",
    "CREATE TABLE questions (query_id VARCHAR, question VARCHAR, key VARCHAR)",
    "CREATE TABLE listings (dir VARCHAR, path VARCHAR, md5 VARCHAR)",
)


def insert(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, Sequence[Any]]
) -> None:
    """Append columns of equal length to a table; loads pyarrow only where there is something to append."""
    if not next(iter(columns.values())):
        return
    import pyarrow

    connection.register("incoming", pyarrow.table({k: list(v) for k, v in columns.items()}))
    connection.execute(f"INSERT INTO {table} SELECT {', '.join(columns)} FROM incoming")
    connection.unregister("incoming")
