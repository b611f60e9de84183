"""Stands in for verl's load balancer where one server makes it idle; imports nothing, since it is a process."""

from typing import Any


class NoRouter:
    """An actor without a job."""

    def __init__(self, servers: dict[str, Any], config: dict[str, Any]) -> None:
        """Args: servers: Unused; config: Unused."""
