"""What the server counts, for Prometheus. For every tool: calls = ok + empty + errors of all kinds."""

from typing import Any


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        """Start at zero, in a registry of its own."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self._calls = Counter("afm_tool_calls", "Calls by tool", ["tool"], registry=self.registry)
        self._outcomes = Counter(
            "afm_tool_outcomes",
            "How calls ended: ok, empty, error, and the kind of an error",
            ["tool", "outcome", "kind"],
            registry=self.registry,
        )
        self._sources = Counter(
            "afm_tool_answers",
            "Where answers came from: backend, cache, or a call in flight that asked the same",
            ["tool", "source"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "afm_tool_seconds", "Duration of calls [s]", ["tool"], registry=self.registry
        )
        self._queue = Gauge(
            "afm_tool_queue",
            "Requests to backends, waiting or running",
            ["tool", "state"],
            registry=self.registry,
        )

    def ended(self, tool: str, outcome: str, kind: str, seconds: float) -> None:
        """Count a call."""
        self._calls.labels(tool).inc()
        self._outcomes.labels(tool, outcome, kind).inc()
        self._seconds.labels(tool).observe(seconds)

    def answered(self, tool: str, source: str) -> None:
        """Count where an answer came from."""
        self._sources.labels(tool, source).inc()

    def queue(self, tool: str, *, waiting: int, running: int) -> None:
        """Show how long a queue is."""
        self._queue.labels(tool, "waiting").set(waiting)
        self._queue.labels(tool, "running").set(running)

    def exposition(self) -> tuple[bytes, str]:
        """Return all in Prometheus' text format, with its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def value(self, name: str, **labels: str) -> float:
        """Return one sample, 0 where nothing was counted."""
        found: Any = self.registry.get_sample_value(name, labels)
        return float(found or 0.0)
