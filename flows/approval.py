"""Waiting until somebody says yes in Prefect to what costs much."""

import time
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Paused

from flows.tasks import Stop

TIMEOUT_S = 7 * 24 * 3600
"""How long a run waits for an answer [s]."""
POLL_S = 2.0


class NotApproved(RuntimeError):
    """Nobody said yes in time."""


def wait_for_approval(run: UUID, message: str, stop: Stop, timeout_s: int = TIMEOUT_S) -> None:
    """Pause the flow run until it is resumed, in the page or through the API.

    Raises:
        CellCancelled: it was cancelled instead, or interrupted here.
        NotApproved: nobody answered in time, or the server does not let it pause.
    """
    paused: State[None] = Paused(timeout_seconds=timeout_s, message=message)
    with get_client(sync_client=True) as client:
        answer = client.set_flow_run_state(run, paused)
        if answer.state is None or not answer.state.is_paused():
            raise NotApproved(
                f"{message}; the Prefect server did not let the run wait: {answer.details}"
            )
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        stop.wait(POLL_S)
        state = _state(run)
        if state is not None and state.is_running():
            return
        if state is not None and (state.is_cancelling() or state.is_cancelled()):
            stop.ask(intent=True)
            stop.check()
    raise NotApproved(f"{message}; nobody answered in {timeout_s / 3600:.1f} h")


def is_cancelled(run: UUID) -> bool:
    """Ask whether someone has cancelled a flow run; no answer is no intent."""
    state = _state(run)
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def _state(run: UUID) -> State[None] | None:
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            return client.read_flow_run(run).state
    except (httpx.HTTPError, PrefectHTTPStatusError):
        return None
