"""The only client to models: OpenAI-compatible endpoints, with bounded concurrency, retries, and token accounts.

Chat goes through the openai package. Token-id completions, of which a rollout makes one per turn, go through aiohttp:
the openai client costs 7 ms of CPU a call and aiohttp 1 ms (measured at 64 open requests), on the cores that generate.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from afm.chat_answer import Spent, chat_text
from afm.endpoint import Endpoint
from afm.errors import ModelError, UserError
from afm.retrying import RETRIED_STATUSES, PassingFailure, retry_after_s, with_retries

T = TypeVar("T")

_QUOTED_CHARS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLimits:
    """How hard a client may press an endpoint."""

    concurrency: int
    """Requests in flight."""
    timeout_s: float = 900.0
    """Of one try [s]."""
    max_tries: int = 4
    max_total_tokens: int | None = None
    """Budget, prompts and completions together [tokens]; no request starts once it is spent."""
    gives_up: bool = True
    """Whether a server that is gone is never asked again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a completion is drawn."""

    max_tokens: int
    temperature: float
    """0 is greedy."""
    top_p: float
    seed: int
    stop: tuple[str, ...] = ()
    num_samples: int = 1
    """Completions of the one prompt; vLLM draws the k-th with seed + k."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Token ids that a model added to a prompt."""

    token_ids: tuple[int, ...]
    """Stop string and end-of-turn token included."""
    finish_reason: str
    """`stop` or `length`."""
    stop_reason: str | int | None
    """The stop string, or the id or None for the end of the turn."""


class ModelClient:
    """A client of one endpoint; an async context manager."""

    def __init__(self, endpoint: Endpoint, limits: ClientLimits) -> None:
        """Connect lazily.

        Raises:
            UserError: the API key's environment variable is not set.
        """
        self.endpoint = endpoint
        self.limits = limits
        self.spent = Spent()
        # Bounds openai's pool as well, whose cost grows with the square of its open requests.
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._http: Any = None
        self._openai: Any = None
        self._dead: str | None = None
        self._key = _api_key(endpoint)

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        import aiohttp

        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.limits.concurrency),
            timeout=aiohttp.ClientTimeout(total=self.limits.timeout_s),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close all connections."""
        await self._http.close()
        if self._openai is not None:
            await self._openai.close()

    async def check(self) -> str | None:
        """Check that the endpoint answers and serves the model, before any work.

        Returns:
            What the server says is behind the name (vLLM's `root`, a path or a hub id); None where it says nothing.

        Raises:
            ModelError: it does not; says what was asked and what to do.
        """
        served = await self._tried(lambda: self._request("GET", "/models", None))
        roots: dict[str, str | None] = {
            str(entry.get("id")): entry.get("root") for entry in served.get("data", ())
        }
        if self.endpoint.model not in roots:
            raise ModelError(
                f"{self.endpoint.base_url} does not serve {self.endpoint.model!r}; it serves {sorted(roots)}"
            )
        return roots[self.endpoint.model]

    async def complete(self, prompt_ids: Sequence[int], sampling: Sampling) -> list[Completion]:
        """Continue token ids with a vLLM server; one completion per sample, in order.

        Raises:
            ModelError: no completion after the last try, or the budget is spent.
        """
        body = _completion_body(self.endpoint.model, prompt_ids, sampling)
        answer = await self._tried(lambda: self._request("POST", "/completions", body))
        choices = sorted(answer.get("choices", ()), key=lambda choice: choice["index"])
        if len(choices) != sampling.num_samples or any("token_ids" not in c for c in choices):
            raise ModelError(
                f"{self.endpoint.base_url} gave {len(choices)} completions for {sampling.num_samples} asked, or no "
                f"token ids (vLLM's return_token_ids): {str(answer)[:_QUOTED_CHARS]}"
            )
        self.spent.add(answer.get("usage") or {})
        return [
            Completion(
                token_ids=tuple(choice["token_ids"]),
                finish_reason=choice["finish_reason"],
                stop_reason=choice.get("stop_reason"),
            )
            for choice in choices
        ]

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float,
        **more: Any,
    ) -> str:
        """Let a chat model answer; returns the text of its message.

        Args:
            messages: `{"role": ..., "content": ...}` each; content may be a list of text and image parts.
            max_tokens: Longest answer [tokens].
            temperature: 0 is greedy.
            more: Other arguments of the openai package's `chat.completions.create`.

        Raises:
            ModelError: no answer after the last try, or the budget is spent.
        """
        arguments = {"max_tokens": max_tokens, "temperature": temperature, **more}
        answer = await self._tried(lambda: self._chat_once(messages, arguments))
        usage = getattr(answer, "usage", None)
        if usage is not None:
            self.spent.add(usage.model_dump())
        text = chat_text(answer)
        if text is None:
            raise ModelError(self._named("answered a chat without text"))
        return text

    async def _tried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await one request in its slot, with retries; a server that is gone is not asked again."""

        async def usable_attempt() -> T:
            self._require_usable()
            return await attempt()

        async with self._slots:
            try:
                return await with_retries(usable_attempt, max_tries=self.limits.max_tries)
            except PassingFailure as failure:
                message = self._named(str(failure))
                self._dead = message if failure.is_dead and self.limits.gives_up else self._dead
                raise ModelError(message) from failure

    def _require_usable(self) -> None:
        if self._dead is not None:
            raise ModelError(self._dead)
        budget = self.limits.max_total_tokens
        used = self.spent.prompt_tokens + self.spent.completion_tokens
        if budget is not None and used >= budget:
            raise ModelError(
                f"{self.endpoint.base_url}: {used} tokens used, the budget is {budget}"
            )

    async def _request(self, method: str, path: str, body: Any) -> dict[str, Any]:
        import aiohttp

        url = self.endpoint.base_url.rstrip("/") + path
        try:
            async with self._http.request(method, url, json=body) as response:
                if response.status == 200:
                    return dict(await response.json())
                text = (await response.text())[:_QUOTED_CHARS]
                waits = retry_after_s(response.headers.get("Retry-After"))
        except aiohttp.ClientConnectorError as error:
            raise PassingFailure(
                f"cannot connect: {error}; is the server running?", is_dead=True
            ) from error
        except TimeoutError as error:
            raise PassingFailure(f"no answer within {self.limits.timeout_s:g} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise PassingFailure(f"broken answer: {type(error).__name__}: {error}") from error
        raise self._refused(response.status, text, waits)

    async def _chat_once(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> Any:
        import openai

        try:
            # openai's own limit is one of each read, and it hands on or raises what it could not parse.
            async with asyncio.timeout(self.limits.timeout_s):
                answer = await self._chat_client().chat.completions.create(
                    model=self.endpoint.model, messages=messages, **arguments
                )
            if not isinstance(answer, openai.types.chat.ChatCompletion):
                raise ValueError(f"no chat completion: {answer!r:.{_QUOTED_CHARS}}")
            return answer
        except ValueError as error:  # a body that is not JSON too, which openai lets through
            raise PassingFailure(f"broken answer: {type(error).__name__}: {error}") from error
        except (openai.APITimeoutError, TimeoutError) as error:
            raise PassingFailure(f"no answer within {self.limits.timeout_s:g} s") from error
        except openai.APIConnectionError as error:
            raise PassingFailure(
                f"cannot connect: {error}; is the server running?", is_dead=True
            ) from error
        except openai.APIStatusError as error:
            waits = retry_after_s(error.response.headers.get("Retry-After"))
            text = error.response.text[:_QUOTED_CHARS]
            raise self._refused(error.status_code, text, waits) from error
        except openai.OpenAIError as error:
            raise ModelError(f"{self.endpoint.base_url}: {error}") from error

    def _chat_client(self) -> Any:
        if self._openai is None:
            import openai

            self._openai = openai.AsyncOpenAI(
                base_url=self.endpoint.base_url,
                api_key=self._key or "none",
                max_retries=0,
                timeout=self.limits.timeout_s,
            )
        return self._openai

    def _refused(self, status: int, text: str, wait_s: float | None) -> Exception:
        message = f"status {status}: {text}"
        if status in RETRIED_STATUSES:
            return PassingFailure(message, wait_s=wait_s)
        return ModelError(self._named(message))

    def _named(self, message: str) -> str:
        return f"{self.endpoint.base_url} ({self.endpoint.model}): {message}"


def _completion_body(model: str, prompt_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(prompt_ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "n": sampling.num_samples,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
    }


def _api_key(endpoint: Endpoint) -> str | None:
    if endpoint.api_key_variable is None:
        return None
    key = os.environ.get(endpoint.api_key_variable)
    if not key:
        raise UserError(
            f"environment variable {endpoint.api_key_variable} is not set; it must hold the API key "
            f"for {endpoint.base_url}"
        )
    return key
