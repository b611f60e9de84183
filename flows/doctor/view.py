"""A look at the cluster, which may not be allowed everywhere."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from flows.doctor.finding import Finding, hidden, problem
from flows.executors import ClusterError
from flows.executors.cluster.api import Api
from flows.executors.cluster.settings import Settings

TOPIC = "cluster"


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The cluster as this project sees it."""

    api: Api
    settings: Settings
    namespace: str

    def path(self, kind: str, name: str = "") -> str:
        """Return where an object of the core API is, or all of a kind."""
        return f"/api/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def kubectl(self, words: str) -> str:
        """Return a command about objects of the namespace."""
        return f"kubectl -n {self.namespace} {words}"


def judged(what: str, command: str, judge: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a look finds. That it may not look is no fault: the launcher's account sees little.

    Args:
        what: is looked at.
        command: with which somebody else can look.
        judge: looks.
    """
    try:
        yield from judge()
    except ClusterError as error:
        if error.status == 403:
            yield hidden(TOPIC, what, f"somebody who may can look: {command}")
        else:
            yield problem(TOPIC, f"{what}: {error}")
