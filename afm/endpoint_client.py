"""One piece of work against an endpoint of params.yaml, wherever it answers.

Its address is the one that the executor has put into the environment, or `base_url`; where there is neither, the stage
serves the model itself for the time of its work.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from afm.chat import ClientLimits, ModelClient
from afm.endpoint import Endpoint, address_variable
from afm.errors import ModelError, UserError
from afm.jsonl import read_json
from afm.params.endpoints import EndpointModel, EndpointParams
from afm.params.reading import parse_section
from afm.serving import Listening, open_server
from afm.serving_client import Account, ask

T = TypeVar("T")


def read_endpoint(path: Path, name: str) -> EndpointParams:
    """Read how an endpoint is reached: what submit wrote beside the params, since stages read tracked params alone.

    Raises:
        UserError: nothing is known of it.
    """
    blocks = read_json(path) if path.exists() else {}
    if name not in blocks:
        raise UserError(
            f"{path} does not say how endpoint {name!r} is reached; run the stage through bin/submit, which writes it"
        )
    return parse_section(blocks[name], EndpointParams, where=f"{path}: {name}")


def with_endpoint(
    name: str,
    model: EndpointModel,
    work: Callable[[ModelClient], Awaitable[T]],
    *,
    access: EndpointParams,
    log: Path,
    facts: Path,
    environ: Mapping[str, str] = os.environ,
) -> T:
    """Let `work` use an endpoint.

    Args:
        name: Of the endpoint in params.yaml.
        model: Who must answer, as the stage's tracked params say.
        work: Gets a client within the endpoint's limits.
        access: How it is reached.
        log: File for the output of a server that this starts.
        facts: File for the endpoint, its token use and cost, for the run record.
        environ: Holds the executor's address, if it gave one.

    Raises:
        UserError: it does not answer, serves another model, or its key is not set.
    """
    with open_endpoint(name, model, access=access, log=log, environ=environ) as endpoint:
        return ask_endpoint(name, endpoint, work, access=access, facts=facts)


def ask_endpoint(
    name: str,
    endpoint: Endpoint,
    work: Callable[[ModelClient], Awaitable[T]],
    *,
    access: EndpointParams,
    facts: Path,
) -> T:
    """Let `work` use an endpoint that is open; see `with_endpoint`.

    Raises:
        UserError: it does not answer, serves another model, or its key is not set.
    """
    account = Account(
        facts=facts,
        name=name,
        prompt_price=access.prompt_price,
        completion_price=access.completion_price,
    )
    try:
        return ask(endpoint, limits_of(access), work, account)
    except ModelError as error:
        raise UserError(_advice(name, error)) from error


def _advice(name: str, error: ModelError) -> str:
    return f"endpoint {name!r}: {error}; look at endpoints.{name} in params.yaml"


def limits_of(access: EndpointParams) -> ClientLimits:
    """Return how hard an endpoint may be pressed."""
    return ClientLimits(
        concurrency=access.concurrency,
        timeout_s=access.timeout_s,
        max_tries=access.max_tries,
        max_total_tokens=access.max_total_tokens,
    )


@contextmanager
def open_endpoint(
    name: str,
    model: EndpointModel,
    *,
    access: EndpointParams,
    log: Path,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Endpoint]:
    """Yield where an endpoint answers; a server that is started for it ends with the block.

    Raises:
        UserError: the server does not start.
    """
    address = environ.get(address_variable(name)) or access.base_url
    if address is not None:
        yield Endpoint(base_url=address, model=model.name, api_key_variable=access.api_key_variable)
        return
    assert access.serve is not None, "an endpoint has base_url or serve"
    listening = Listening(name=model.name)
    folder = Path(access.serve.model)
    with _started(name, folder, access, log, listening) as server:
        yield replace(server, model=model.name)


@contextmanager
def _started(
    name: str, folder: Path, access: EndpointParams, log: Path, listening: Listening
) -> Iterator[Endpoint]:
    assert access.serve is not None
    with ExitStack() as stack:
        try:
            server = stack.enter_context(
                open_server(folder, access.serve, log=log, listening=listening)
            )
        except ModelError as error:
            raise UserError(_advice(name, error)) from error
        yield server.endpoint
