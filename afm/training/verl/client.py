"""Client of the rollout server on a CPU: verl's `generate`, over HTTP to a vLLM server of another environment.

aiohttp comes with ray; at the hundreds of short requests per step here it costs a fraction of the openai client's CPU
time (toolchain: 8 to 18 ms a call), on the two cores that also generate.
"""

import json
import time
from pathlib import Path
from typing import Any

from afm.errors import ModelError
from afm.jsonl import write_json

ADDRESS_FILE = "address.json"
"""In the served folder: where the server listens, or why it did not start."""
_CONNECTIONS = 128
_TIMEOUT_S = 900.0


def publish_address(
    served: Path, *, base_url: str | None, model: str = "", error: str = ""
) -> None:
    """Tell the run's processes where the server listens, or why it does not."""
    write_json(served / ADDRESS_FILE, {"base_url": base_url, "model": model, "error": error})


def wait_for_address(served: Path, timeout_s: float) -> tuple[str, str]:
    """Wait until the server listens; returns its root URL and the name of its model.

    Raises:
        ModelError: it did not start.
    """
    deadline = time.monotonic() + timeout_s
    while not (served / ADDRESS_FILE).exists():
        if time.monotonic() > deadline:
            raise ModelError(f"the rollout server did not start within {timeout_s:.0f} s")
        time.sleep(0.2)
    address = json.loads((served / ADDRESS_FILE).read_text(encoding="utf-8"))
    if address["base_url"] is None:
        raise ModelError(f"the rollout server did not start: {address['error']}")
    root = str(address["base_url"]).rstrip("/").removesuffix("/v1")
    return root, str(address["model"])


class HttpServer:
    """Stands in for verl's `LLMServerClient`. Not a dataclass: hydra would turn one into a configuration."""

    def __init__(self, served: Path, startup_timeout_s: float) -> None:
        """Remember where the address will appear; connects on first use, in the process that uses it."""
        self._served = served
        self._startup_timeout_s = startup_timeout_s
        self._session: Any = None
        self._root = ""
        self._model = ""

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        **_unused: Any,
    ) -> Any:
        """Continue token ids on the server; returns verl's `TokenOutput`.

        Raises:
            ModelError: the server failed or did not answer in time.
        """
        from verl.workers.rollout.replica import TokenOutput

        body = self._body(prompt_ids, sampling_params)
        choice = (await self._post("/v1/completions", body))["choices"][0]
        return TokenOutput(
            token_ids=choice["token_ids"],
            log_probs=choice["logprobs"]["token_logprobs"],
            stop_reason="completed" if choice["finish_reason"] == "stop" else "length",
        )

    def _body(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> dict[str, Any]:
        if not self._root:
            self._root, self._model = wait_for_address(self._served, self._startup_timeout_s)
        body = {"model": self._model, "prompt": list(prompt_ids), **sampling_params}
        return body | {"logprobs": 0, "return_token_ids": True}

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            )
        try:
            async with self._session.post(self._root + path, json=body) as response:
                text = await response.text()
                if response.status != 200:
                    raise ModelError(f"rollout server: {response.status}: {text[:300]}")
                return json.loads(text)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ModelError(f"rollout server: {type(error).__name__}: {error}") from error
