"""Prefect and MLflow: they answer, the flows are deployed, and their databases carry what asks them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from afm.plain_yaml import parse_yaml
from flows.doctor.finding import Finding, Site, hidden, ok, problem, warning
from flows.tracking import tracking_uri

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

TIMEOUT_S = 10.0
TOPIC = "services"
SEVERAL = "SQLite carries one worker: run the server on PostgreSQL, as k8s/services does"


def check(site: Site) -> Iterator[Finding]:
    """Ask both."""
    yield from _prefect(site)
    yield _mlflow(site)


def _prefect(site: Site) -> Iterator[Finding]:
    import httpx
    from prefect.client.orchestration import get_client

    address = site.environ.get("PREFECT_API_URL")
    if not address:
        yield ok(
            TOPIC, "Prefect: PREFECT_API_URL is not set, so `afm run` starts a server of its own"
        )
        return
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": TIMEOUT_S}) as client:
            version = client.request("GET", "/admin/version").json()
            yield ok(TOPIC, f"Prefect {version} answers at {address}")
            yield _deployments(site, client)
            yield _database(client)
    except httpx.HTTPStatusError as error:
        todo = "set PREFECT_API_AUTH_STRING to the server's user:password"
        yield problem(TOPIC, f"Prefect at {address} refuses: {error.response.status_code}", todo)
    except httpx.TransportError as error:
        todo = "start it, or unset PREFECT_API_URL"
        yield problem(TOPIC, f"no Prefect server answers at {address}: {error}", todo)


def _deployments(site: Site, client: "SyncPrefectClient") -> Finding:
    file = parse_yaml((site.root / "prefect.yaml").read_text(encoding="utf-8"))
    wanted = {one["name"] for one in file["deployments"]}
    lacking = sorted(wanted - {one.name for one in client.read_deployments()})
    if lacking:
        return warning(TOPIC, f"Prefect has no deployment {', '.join(lacking)}", "afm deploy")
    return ok(TOPIC, f"Prefect has all {len(wanted)} deployments of prefect.yaml")


def _database(client: "SyncPrefectClient") -> Finding:
    """Count the workers that a database has to carry."""
    workers = [
        worker.name
        for pool in client.read_work_pools()
        for worker in client.read_workers_for_work_pool(pool.name)
        if str(getattr(worker.status, "value", worker.status)).upper() == "ONLINE"
    ]
    settings: dict[str, Any] = client.request("GET", "/admin/settings").json()
    driver = settings["server"]["database"]["driver"]
    text = f"Prefect has {len(workers)} worker(s) online"
    if driver is None:
        todo = SEVERAL if len(workers) > 1 else ""
        return hidden(TOPIC, f"{text}; its server does not show which database it uses", todo)
    if driver.startswith("sqlite") and len(workers) > 1:
        return problem(TOPIC, f"{text} on SQLite: {', '.join(workers)}", SEVERAL)
    return ok(TOPIC, f"{text}, database {driver.partition('+')[0]}")


def _mlflow(site: Site) -> Finding:
    uri = site.environ.get("MLFLOW_TRACKING_URI") or tracking_uri(site.home)
    if uri.startswith("sqlite:"):
        if site.is_cluster:
            text = f"MLflow is the file {uri}, which runs on a cluster would share"
            return problem(TOPIC, text, "set MLFLOW_TRACKING_URI to a server on PostgreSQL")
        return ok(TOPIC, f"MLflow is the file {uri}")
    if not uri.startswith(("http://", "https://")):
        return warning(TOPIC, f"MLflow: {uri.partition(':')[0]} is not looked at")
    return _mlflow_server(site, uri)


def _mlflow_server(site: Site, uri: str) -> Finding:
    import httpx

    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    user, password = (site.environ.get(name) for name in names)
    login = (user, password) if user and password else None
    address = f"{uri.rstrip('/')}/api/2.0/mlflow/experiments/search"
    try:
        answer = httpx.get(address, params={"max_results": 1}, auth=login, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        todo = "start it, or unset MLFLOW_TRACKING_URI; `afm lineage sync` catches up later"
        return problem(TOPIC, f"no MLflow answers at {uri}: {error}", todo)
    if answer.status_code in (401, 403):
        return problem(
            TOPIC, f"MLflow at {uri} refuses: {answer.status_code}", f"set {' and '.join(names)}"
        )
    if answer.is_error:
        return problem(TOPIC, f"MLflow at {uri} answers {answer.status_code}", "look at its log")
    return ok(TOPIC, f"MLflow answers at {uri}")
