"""Model endpoints of params.yaml: their addresses answer, and their keys are set."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from afm.params.reading import read_tree
from flows.doctor.finding import Finding, Site, ok, problem

TOPIC = "endpoints"
TIMEOUT_S = 5.0


def check(site: Site) -> Iterator[Finding]:
    """Look at each block of `endpoints`; a project without any has nothing to look at.

    Raises:
        UserError: params.yaml cannot be read.
    """
    for name, block in _blocks(site).items():
        if not (site.is_cluster and _host(block) and "." not in _host(block)):
            yield _endpoint(site, name, block)


def services(site: Site) -> list[str]:
    """Return the names of the Services among the endpoints, which only pods reach.

    Raises:
        UserError: params.yaml cannot be read.
    """
    hosts = {_host(block) for block in _blocks(site).values()}
    return sorted(host for host in hosts if host and "." not in host)


def _blocks(site: Site) -> dict[str, Mapping[str, Any]]:
    found = read_tree(site.root / "params.yaml").get("endpoints") or {}
    return {str(name): block for name, block in found.items() if isinstance(block, Mapping)}


def _host(block: Mapping[str, Any]) -> str:
    return urlsplit(str(block.get("base_url") or "")).hostname or ""


def _endpoint(site: Site, name: str, block: Mapping[str, Any]) -> Finding:
    url, key = block.get("base_url"), _key_variable(block)
    if not url:
        return ok(TOPIC, f"{name}: started for the stages that need it")
    if not _host(block):
        return problem(
            TOPIC, f"{name}: base_url {url!r} is no address", "write http://HOST:PORT/v1"
        )
    if key and not site.environ.get(key) and not site.is_cluster:
        return problem(TOPIC, f"{name}: its key's variable {key} is not set", f"export {key}=...")
    return _answer(name, str(url), site.environ.get(key or "", ""))


def _key_variable(block: Mapping[str, Any]) -> str | None:
    """Return the name of the variable that holds the key: the block names it, it never holds the key itself."""
    found = (value for field, value in block.items() if "api_key" in field and value)
    return next((str(value) for value in found), None)


def _answer(name: str, url: str, key: str) -> Finding:
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/models", headers=headers, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return problem(
            TOPIC, f"{name}: {url} does not answer: {error}", "start it, or mend base_url"
        )
    if answer.status_code in (401, 403):
        return problem(
            TOPIC, f"{name}: {url} refuses the key: {answer.status_code}", "mend the key"
        )
    return ok(TOPIC, f"{name}: {url} answers")
