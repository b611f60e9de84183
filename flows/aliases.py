"""Which content MLflow's aliases (`sft`, `rl`, `champion`) lead to. Reads MLflow, where flows.lineage writes it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm.errors import UserError
from flows.lineage_view import ancestry
from flows.tracking import tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE = 1000


def aliased_content(root: Path) -> frozenset[str]:
    """Return the md5s of every model that has an alias and of all that led to it; none where MLflow has yet to begin.

    Raises:
        UserError: MLflow does not answer.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = tracking_uri(root)
    if not os.environ.get("MLFLOW_TRACKING_URI") and not (root / "mlflow.db").exists():
        return frozenset()
    try:
        client = MlflowClient(tracking_uri=uri)
        return ancestry(list(_models(client)), list(_runs(client)))
    except (MlflowException, SQLAlchemyError) as error:
        raise UserError(
            f"MLflow at {uri} does not tell which models have an alias, so nothing is removed: {error}. Start it, or "
            "say --without-aliases: a model that only an alias keeps then goes"
        ) from error


def _models(client: "MlflowClient") -> Iterator[str]:
    for model in _pages(client.search_registered_models):
        for alias in model.aliases:
            yield client.get_model_version_by_alias(model.name, alias).tags["afm.md5"]


def _runs(client: "MlflowClient") -> Iterator[dict[str, str]]:
    """Yield the tags of the stage runs of all studies."""
    studies = [study.experiment_id for study in _pages(client.search_experiments)]
    for run in _pages(client.search_runs, studies, "tags.`afm.identity` != ''"):
        yield run.data.tags


def _pages(search: Any, *words: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(*words, max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
