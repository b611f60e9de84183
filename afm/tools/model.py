"""A model that a tool asks, connected on first use."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from afm.chat import ClientLimits, ModelClient
from afm.endpoint import Endpoint
from afm.errors import ModelError, ToolError
from afm.params.backends import ModelParams


class ToolModel:
    """Asks one model; belongs to the event loop that uses it first."""

    def __init__(self, params: ModelParams) -> None:
        """Connect lazily.

        Raises:
            UserError: the key's environment variable is not set.
        """
        self._params = params
        endpoint = Endpoint(
            base_url=params.base_url, model=params.model, api_key_variable=params.api_key_variable
        )
        limits = ClientLimits(
            concurrency=params.concurrency, timeout_s=params.timeout_s, gives_up=False
        )
        self._client = ModelClient(endpoint, limits)
        self._opening: asyncio.Task[Any] | None = None

    async def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the model's answer, stripped.

        Raises:
            ToolError: it did not answer, or with nothing; kind `model`.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._client.__aenter__())
        await asyncio.shield(self._opening)
        try:
            answer = await self._client.chat(
                messages, max_tokens=self._params.max_tokens, temperature=self._params.temperature
            )
        except ModelError as error:
            raise ToolError(str(error), kind="model") from error
        if not answer.strip():
            raise ToolError(f"{self._params.base_url}: an empty answer", kind="model")
        return answer.strip()

    async def close(self) -> None:
        """Close all connections."""
        if self._opening is not None:
            await self._opening
            await self._client.__aexit__()
