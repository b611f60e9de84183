"""The Kubernetes API as JSON over HTTP: the kubernetes client knows hosts and tokens, we are patient with outages.

Objects stay plain dicts: the client's models drop fields that they do not know, and the server checks ours strictly.
The only importer of kubernetes.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from afm.errors import UserError
from flows.executors import ClusterError

CONNECT_S = 5.0
READ_S = 20.0
"""Longest wait for one answer [s]."""
RETRY_S = 1.0
"""Pause before the first repetition of a call that met an outage; doubles up to `RETRY_MAX_S` [s]."""
RETRY_MAX_S = 10.0
TRANSIENT = frozenset({429, 500, 502, 503, 504})
"""Answers that say nothing about the request."""
RELOADS = 1
"""How often in a row a refused token is read again: it may have been rotated."""
JSON = "application/json"
METADATA_ONLY = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Object = dict[str, Any]


class Api:
    """Requests to one API server; a call survives outages up to `patience_s`."""

    def __init__(
        self,
        *,
        patience_s: float,
        pause: Callable[[float], None] = time.sleep,
        warn: Callable[[str], None] = print,
    ) -> None:
        """Read the configuration.

        Args:
            patience_s: how long a request is repeated while the API does not answer [s].
            pause: waits; may raise to give up.
            warn: told once per outage.

        Raises:
            UserError: there is neither a kubeconfig nor a service account.
        """
        self._patience_s = patience_s
        self._pause = pause
        self._warn = warn
        self._client, self.namespace = _load()

    def get(self, path: str, **query: str) -> Object:
        """Read one object or list.

        Raises:
            ClusterError: status 404 where there is none.
        """
        return self._ask("GET", path, query)

    def find(self, path: str) -> Object | None:
        """Read one object, or None where there is none."""
        try:
            return self.get(path)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def exists(self, path: str) -> bool:
        """Tell whether there is an object, without reading more of it than its metadata: it may be a Secret."""
        try:
            self._ask("GET", path, {}, accept=METADATA_ONLY)
        except ClusterError as error:
            if error.status == 404:
                return False
            raise
        return True

    def create(self, path: str, body: Object, **query: str) -> Object:
        """Create an object.

        Raises:
            ClusterError: status 409 where it exists, 422 where a field is wrong.
        """
        return self._ask("POST", path, {"fieldValidation": "Strict", **query}, body)

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object.

        Raises:
            ClusterError: status 409 where it has changed since it was read.
        """
        return self._ask("PUT", path, {}, body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge into an object."""
        return self._ask("PATCH", path, {}, body, "application/merge-patch+json")

    def delete(self, path: str, **options: Any) -> None:
        """Delete an object with what it owns; nothing where there is none.

        Without a propagation policy the pods of a Job would run on.
        """
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            self._ask("DELETE", path, {}, {**body, **options})
        except ClusterError as error:
            if error.status != 404:
                raise

    def lines(self, path: str, *, read_s: float, **query: str) -> Iterator[str]:
        """Follow an answer line by line until the server or `read_s` of silence ends it; no repetition.

        Raises:
            ClusterError: the server refuses it, or the connection breaks.
        """
        import urllib3

        response = self._send("GET", path, query, None, JSON, read_s)
        if response.status != 200:
            raise _refusal(path, response)
        rest = b""
        try:
            for chunk in response.response.stream(65536, decode_content=True):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in whole)
            if rest:
                yield rest.decode("utf-8", "replace")
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"{path}: the connection broke: {error}") from error
        finally:
            response.response.close()

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Object:
        deadline, wait, refused, told = time.monotonic() + self._patience_s, RETRY_S, 0, False
        while True:
            try:
                return _body(
                    path, self._send(method, path, query, body, content_type, READ_S, accept)
                )
            except ClusterError as error:
                if error.status == 401 and refused < RELOADS:
                    refused += 1
                    self._client, _ = _load()
                    continue
                if error.status is not None and error.status not in TRANSIENT:
                    raise
                if time.monotonic() + wait > deadline:
                    raise
                if not told:
                    self._warn(f"the cluster's API does not answer, trying on: {error}")
                    told = True
            self._pause(wait)
            wait = min(2 * wait, RETRY_MAX_S)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None,
        content_type: str,
        read_s: float,
        accept: str = JSON,
    ) -> Any:
        import urllib3

        headers = {"Accept": accept} | ({"Content-Type": content_type} if body else {})
        request = self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            return self._client.call_api(*request, _request_timeout=(CONNECT_S, read_s))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(f"{method} {path}: no answer: {error}") from error
        except _client_error() as error:
            raise ClusterError(f"{method} {path}: {error.reason}", status=error.status) from error


def quantity(text: str) -> Decimal:
    """Read a quantity like `500m` or `16Gi`.

    Raises:
        UserError: it is none.
    """
    from kubernetes.utils.quantity import parse_quantity

    try:
        return Decimal(parse_quantity(text))  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise UserError(f"{text!r} is no quantity of Kubernetes: {error}") from error


def _client_error() -> Any:
    from kubernetes.client.exceptions import ApiException

    return ApiException


def _load() -> tuple[Any, str]:
    """Return a client and the namespace of the kubeconfig's context, or of the pod that this runs in."""
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    settings = client.Configuration()
    settings.retries = False  # the repetitions are ours: the client's own triple every timeout
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
            namespace = NAMESPACE_FILE.read_text().strip()
        else:
            file = os.environ.get("KUBECONFIG")  # the client itself looks once, when it is imported
            config.load_kube_config(file, client_configuration=settings)  # type: ignore[no-untyped-call]
            _, active = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
            namespace = active["context"].get("namespace", "default")
    except (ConfigException, TypeError) as error:
        raise UserError(
            f"no way to a cluster: {error}; set KUBECONFIG to a kubeconfig file, or run in a pod with a service account"
        ) from error
    return client.ApiClient(settings), namespace


def _body(path: str, response: Any) -> Object:
    if not 200 <= response.status < 300:
        raise _refusal(path, response)
    import urllib3

    try:
        answer: Object = json.loads(response.read())
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        raise ClusterError(f"{path}: the answer was cut off: {error}") from error
    return answer


def _refusal(path: str, response: Any) -> ClusterError:
    import urllib3

    try:
        text = response.read().decode("utf-8", "replace")
    except urllib3.exceptions.HTTPError as error:
        return ClusterError(f"{path}: the answer was cut off: {error}")
    try:
        text = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        text = text[:500]
    return ClusterError(f"{path}: {response.status}: {text}", status=response.status)
