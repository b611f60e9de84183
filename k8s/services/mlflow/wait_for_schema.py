"""Wait until both databases are where this version of MLflow wants them: the migration job brings them there, once.

A server that finds an empty database would make the tables itself, in every worker at a time.
"""

import sys
import time
from pathlib import Path

import mlflow
import sqlalchemy
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

MIGRATIONS = Path(mlflow.__file__).parent
SCHEMAS = (
    ("store/db_migrations", "alembic_version"),
    ("server/auth/db/migrations", "alembic_version_auth"),
)
PAUSE_S = 5.0


def lacks(url: str, folder: str, table: str) -> str | None:
    """Say what keeps a database from being current; None where nothing does."""
    wanted = ScriptDirectory(str(MIGRATIONS / folder)).get_current_head()
    try:
        with sqlalchemy.create_engine(url).connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": table})
            found = context.get_current_revision()
    except sqlalchemy.exc.OperationalError as error:
        return f"no connection: {error.orig}"
    return None if found == wanted else f"{table} is {found}, wanted {wanted}"


def main() -> None:
    """Look again every few seconds; arguments: address of the tracking database, of the users' database."""
    for url, (folder, table) in zip(sys.argv[1:], SCHEMAS, strict=True):
        while reason := lacks(url, folder, table):
            print(f"waiting for job afm-mlflow-migration: {reason}", flush=True)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
