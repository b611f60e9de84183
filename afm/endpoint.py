"""Where a model answers, and the variable that tells so."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server and the model that it is asked for."""

    base_url: str
    """For instance `http://127.0.0.1:8000/v1`."""
    model: str
    """Served model name."""
    api_key_variable: str | None = None
    """Name of the environment variable that holds the API key; None for servers without one."""


def address_variable(name: str) -> str:
    """Return the environment variable through which an executor tells where an endpoint of params.yaml answers."""
    return f"AFM_ENDPOINT_{name.upper()}"
