"""What a container gets to run: command, environment, folder."""

import base64
import re
from pathlib import Path
from typing import Any

from tests.support.cluster.config import Config, Image
from tests.support.cluster.quantities import memory_limit
from tests.support.cluster.store import Object, Store, hidden

MARK = "AFM_DOUBLE_POD"
"""In the environment of every process of a pod; its value is the pod's folder."""
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
NO_HOME = "/dev/null"


class ConfigError(Exception):
    """CreateContainerConfigError: the pod waits until what is missing appears."""


def describe(
    store: Store, config: Config, pod: Object, container: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Return what the supervisor needs to run a container.

    Raises:
        ConfigError: a secret, configMap or key is missing, or there is nothing to run.
    """
    image = config.images[container["image"]]
    env = environment(store, pod, container, image, config)
    names = service_names(store, pod)
    command = container.get("command") or list(image.entrypoint)
    argv = [_expand(part, env) for part in [*command, *(container.get("args") or [])]]
    if not argv:
        raise ConfigError("no command specified")
    env = {key: _to_loopback(value, names) for key, value in env.items()}
    read_only = (container.get("securityContext") or {}).get("readOnlyRootFilesystem")
    env.setdefault("HOME", NO_HOME if read_only else str(folder))
    return {
        "name": container["name"],
        "argv": [_to_loopback(part, names) for part in argv],
        "env": {**env, MARK: str(folder)},
        "cwd": container.get("workingDir") or ("/" if read_only else str(folder)),
        "memory_limit": memory_limit(container),
    }


def environment(
    store: Store, pod: Object, container: dict[str, Any], image: Image, config: Config
) -> dict[str, str]:
    env = {"PATH": config.path, **image.env}
    env["HOSTNAME"] = pod["spec"].get("hostname") or pod["metadata"]["name"]
    if numbers := hidden(pod).get("gpus"):
        env["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, numbers))
    namespace = pod["metadata"]["namespace"]
    for source in container.get("envFrom") or []:
        for key, value in _all_keys(store, namespace, source).items():
            env[source.get("prefix", "") + key] = value
    for row in container.get("env") or []:
        found = _value(store, pod, container, row)
        if found is not None:
            env[row["name"]] = _expand(found, env)
    return env


def _all_keys(store: Store, namespace: str, source: dict[str, Any]) -> dict[str, str]:
    for kind, resource in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
        if reference := source.get(kind):
            return _data(store, resource, namespace, reference)
    return {}


def _data(store: Store, resource: str, namespace: str, reference: dict[str, Any]) -> dict[str, str]:
    found = store.find(resource, namespace, reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{resource.removesuffix("s")} "{reference["name"]}" not found')
    data = found.get("data") or {}
    if resource == "secrets":
        return {key: base64.b64decode(value).decode() for key, value in data.items()}
    return dict(data)


def _value(store: Store, pod: Object, container: dict[str, Any], row: dict[str, Any]) -> str | None:
    source = row.get("valueFrom")
    if source is None:
        return str(row.get("value") or "")
    if reference := source.get("fieldRef"):
        return _field(pod, reference["fieldPath"])
    if reference := source.get("resourceFieldRef"):
        part, _, name = reference["resource"].partition(".")
        return str((container.get("resources") or {}).get(part, {}).get(name, "0"))
    for kind, resource in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if reference := source.get(kind):
            data = _data(store, resource, pod["metadata"]["namespace"], reference)
            if reference["key"] not in data and not reference.get("optional"):
                missing = f"couldn't find key {reference['key']} in {resource} {reference['name']}"
                raise ConfigError(missing)
            return data.get(reference["key"])
    raise ConfigError(f"{row['name']}: the double knows no {sorted(source)}")


def _field(pod: Object, path: str) -> str:
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    if path in ("status.podIP", "status.hostIP"):
        return "127.0.0.1"
    part, _, name = path.partition(".")
    return str(pod[part].get(name, ""))


def _expand(text: str, env: dict[str, str]) -> str:
    """Replace $(NAME); $$ is a dollar, an unknown name stays."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return env.get(match[1], match[0])

    return REFERENCE.sub(replace, text)


def service_names(store: Store, pod: Object) -> re.Pattern[str] | None:
    """A pattern of every DNS name that would lead to a Service.

    Qualified names match anywhere; a bare name matches only where it is a host: after // or @, or before a port.
    The pod's own headless Service counts as there: a cluster looks names up when they are used, and not at the start.
    """
    alternatives = []
    namespace = pod["metadata"]["namespace"]
    if subdomain := pod["spec"].get("subdomain"):
        alternatives.append(rf"(?<![\w.-])[a-z0-9-]+\.{re.escape(subdomain)}(?![\w-]|\.\w)")
    for service in store.each("services"):
        name, space = (re.escape(service["metadata"][key]) for key in ("name", "namespace"))
        qualified = rf"(?:[a-z0-9-]+\.)?{name}\.{space}(?:\.svc(?:\.cluster\.local)?)?"
        alternatives.append(rf"(?<![\w.-]){qualified}(?![\w-]|\.\w)")
        if service["metadata"]["namespace"] == namespace:
            alternatives.append(rf"(?<![\w.-])[a-z0-9-]+\.{name}(?![\w-]|\.\w)")
            alternatives.append(rf"(?<=//){name}(?=[:/]|$)|(?<=@){name}(?=[:/]|$)")
            alternatives.append(rf"(?<![\w./-]){name}(?=:\d+)")
    return re.compile("|".join(alternatives)) if alternatives else None


def _to_loopback(text: str, names: re.Pattern[str] | None) -> str:
    return text if names is None else names.sub("127.0.0.1", text)
