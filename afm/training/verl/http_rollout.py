"""The trainer's side of a rollout server over HTTP: verl hands over new weights, the server reads them again."""

import json
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from afm.errors import ModelError
from afm.training.verl.client import wait_for_address
from afm.training.verl.export import save_untied
from afm.training.verl.run import current_run

_TIMEOUT_S = 600.0


class HttpAdapter(BaseRollout):  # type: ignore[misc]
    """Writes the weights where the server reads them and asks it to reload; runs inside the trainer's worker."""

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: the server keeps its memory."""

    async def release(self) -> None:
        """Do nothing: the server keeps its memory."""

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        **_kwargs: Any,
    ) -> None:
        """Push weights; the server drops its prefix cache, whose keys and values are of the old ones.

        Raises:
            ModelError: the server refused.
        """
        assert wire_format == "named_tensors", wire_format
        run = current_run()
        root, _ = wait_for_address(run.served, run.serve.startup_timeout_s)
        save_untied(dict(weights), run.served)
        _post(f"{root}/collective_rpc", {"method": "reload_weights"})
        _post(f"{root}/reset_prefix_cache", {})


class HttpReplica(RolloutReplica):  # type: ignore[misc]
    """A server that already runs, in another environment: verl has nothing to launch, wake or put to sleep."""

    def rollout_worker_use_gpu(self) -> bool:
        """Return False."""
        return False

    async def launch_servers(self) -> None:
        """Record a name; the agent loops have a client of their own."""
        self._server_address = f"http:{Path(current_run().served).name}"


def _post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            response.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise ModelError(f"rollout server: {url}: {error}") from error
