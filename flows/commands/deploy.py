"""`afm deploy`: work pools, concurrency limits and deployments on the Prefect server, again after every change."""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import read_json
from flows.environment import quiet_environment
from flows.workspace import here

POOLS = {"laptop": "process", "kubernetes": "kubernetes"}
"""Work pool -> type of worker that serves it."""
TEMPLATE = Path("k8s") / "services" / "prefect" / "job-template.json"
LIMITS = {"local": 1, "gpu": 8}
"""Cells at once over all runs of a server, by what they occupy: a worker's machine, a cluster's GPUs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm deploy`."""
    for tag, limit in LIMITS.items():
        parser.add_argument(
            f"--{tag}",
            type=int,
            metavar="N",
            help=f"most cells at once with the tag {tag!r}; default: as it is, {limit} at first",
        )


def run(args: argparse.Namespace) -> int:
    """Bring the server that PREFECT_API_URL names up to date with this checkout.

    Raises:
        UserError: no server is named, or it does not answer; a limit is not positive.
    """
    root = here().root
    if "PREFECT_API_URL" not in os.environ:
        raise UserError(
            "PREFECT_API_URL is not set: it names the server to deploy to. `afm ui prefect` starts one, "
            "at http://127.0.0.1:4200/api"
        )
    for tag in LIMITS:
        wanted = getattr(args, tag)
        if wanted is not None and wanted < 1:
            raise UserError(
                f"--{tag} {wanted}: at least 1, else no cell with that tag would ever run"
            )
    prepare_server(root, {tag: getattr(args, tag) for tag in LIMITS})
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    return subprocess.run(command, cwd=root, env=quiet_environment(os.environ)).returncode


def checkout() -> dict[str, str]:
    """Tell prefect.yaml where it is: a build step, since a deployment for this machine must name the folder."""
    return {"directory": str(Path.cwd())}


def prepare_server(root: Path, limits: Mapping[str, int | None]) -> None:
    """Make the pools and limits that deployments and their runs need.

    Raises:
        UserError: the server does not answer.
    """
    import httpx
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            for name, kind in POOLS.items():
                _pool(client, name, kind, _template(root) if kind == "kubernetes" else None)
            for tag, limit in limits.items():
                _limit(client, tag, limit)
    except httpx.TransportError as error:
        raise UserError(
            f"no Prefect server answers at {os.environ['PREFECT_API_URL']}: {error}"
        ) from error


def _template(root: Path) -> dict[str, Any] | None:
    path = root / TEMPLATE
    return dict(read_json(path)) if path.exists() else None


def _pool(client: Any, name: str, kind: str, template: dict[str, Any] | None) -> None:
    """Make a pool, or give the one that exists the template of this checkout."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound

    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        known = {"base_job_template": template} if template else {}
        client.create_work_pool(WorkPoolCreate(name=name, type=kind, **known))
        print(f"made the work pool {name!r}")
    else:
        if template:
            client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))


def _limit(client: Any, tag: str, limit: int | None) -> None:
    """Set a limit that was asked for; else make it where there is none."""
    from prefect.exceptions import ObjectNotFound

    try:
        known = client.read_global_concurrency_limit_by_name(f"tag:{tag}")
    except ObjectNotFound:
        known = None
    if known is None or limit is not None:
        client.upsert_global_concurrency_limit_by_name(f"tag:{tag}", limit or LIMITS[tag])
        print(f"at most {limit or LIMITS[tag]} cells at once with the tag {tag!r}")
