"""What `afm doctor` looks at. A topic is one module with a function `check` here, and one line in `TOPICS`."""

import importlib
from collections.abc import Iterator

from afm.errors import UserError
from flows.doctor.finding import Finding, Site, problem

TOPICS = {
    "environments": "flows.doctor.environments",
    "git": "flows.doctor.sources",
    "dvc": "flows.doctor.storage",
    "machine": "flows.doctor.machine",
    "services": "flows.doctor.services",
    "endpoints": "flows.doctor.endpoints",
    "cluster": "flows.doctor.cluster",
}
"""Module by topic; named, not imported, since some bring heavy clients."""


def examine(site: Site) -> Iterator[Finding]:
    """Yield what every topic finds; one that cannot be looked at is a problem, and the others follow."""
    for topic, module in TOPICS.items():
        if topic == "cluster" and not site.is_cluster:
            continue
        try:
            yield from importlib.import_module(module).check(site)
        except UserError as error:
            yield problem(topic, str(error))
