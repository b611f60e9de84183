"""Volumes without mount namespaces: a mount is legal only where it changes nothing.

A mountPath (with its subPath) must be the very host path that the volume resolves to. emptyDir at /dev/shm, /tmp or
/var/tmp uses the host's; below a declared scratch prefix it, a secret or a configMap is made at the mountPath itself
and removed with the pod.
"""

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster.config import Config
from tests.support.cluster.store import Object, Store

SHARED = ("/dev/shm", "/tmp", "/var/tmp")
WALK_LIMIT = 50_000


class NotYet(Exception):
    """What a volume needs is not there: the pod stays ContainerCreating (FailedMount)."""


class BadMount(Exception):
    """A mount that cannot be had without a mount namespace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """One mount of one container, resolved."""

    path: str
    source: str | None
    """Host path; None: made by `content`, or the host's own shared folder."""
    read_only: bool
    content: dict[str, bytes] | None = None
    """Files to be written at `path`."""


def resolve(store: Store, config: Config, pod: Object) -> list[Mount]:
    """Resolve every mount of a pod.

    Raises:
        NotYet: a secret, configMap or claim is missing.
        BadMount: a mount is not legal here.
    """
    volumes = {row["name"]: row for row in pod["spec"].get("volumes") or []}
    namespace = pod["metadata"]["namespace"]
    mounts = []
    for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
        for row in container.get("volumeMounts") or []:
            mount = _resolve(store, namespace, volumes[row["name"]], row)
            _check(mount, config)
            mounts.append(mount)
    return mounts


def _resolve(store: Store, namespace: str, volume: dict[str, Any], row: dict[str, Any]) -> Mount:
    path, read_only = row["mountPath"], bool(row.get("readOnly"))
    if source := volume.get("hostPath"):
        host = source["path"]
    elif source := volume.get("persistentVolumeClaim"):
        host = claim_folder(store, namespace, source["claimName"])
        read_only = read_only or bool(source.get("readOnly"))
    elif "emptyDir" in volume:
        return Mount(path=path, source=None, read_only=read_only, content={})
    else:
        files = dict(_files(store, namespace, volume))
        if sub_path := row.get("subPath"):
            path = str(Path(path).parent)
            files = {Path(row["mountPath"]).name: files[sub_path]}
        return Mount(path=path, source=None, read_only=read_only, content=files)
    folder = str(Path(host) / row.get("subPath", ""))
    return Mount(path=path, source=folder, read_only=read_only)


def claim_folder(store: Store, namespace: str, name: str) -> str:
    """Return the host folder behind a claim."""
    claim = store.find("persistentvolumeclaims", namespace, name)
    if claim is None or claim["status"]["phase"] != "Bound":
        raise NotYet(f'persistentvolumeclaim "{name}" is not bound')
    volume = store.find("persistentvolumes", "", claim["spec"]["volumeName"])
    if volume is None or "hostPath" not in volume["spec"]:
        raise NotYet(f'persistentvolumeclaim "{name}": its volume has no hostPath')
    return str(volume["spec"]["hostPath"]["path"])


def _files(store: Store, namespace: str, volume: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    sources = (volume.get("projected") or {}).get("sources") or [volume]
    for source in sources:
        if secret := source.get("secret"):
            name = secret.get("secretName") or secret["name"]
            yield from _keys(_load(store, "secrets", namespace, name, secret), secret)
        elif configmap := source.get("configMap"):
            found = _load(store, "configmaps", namespace, configmap["name"], configmap)
            yield from _keys(found, configmap)
        elif not {"serviceAccountToken", "downwardAPI"} & set(source):
            kinds = sorted(set(source) - {"name"})
            raise BadMount(f"volume {volume['name']}: the double knows no {kinds}")


def _load(
    store: Store, resource: str, namespace: str, name: str, source: dict[str, Any]
) -> dict[str, bytes]:
    found = store.find(resource, namespace, name)
    if found is None and not source.get("optional"):
        raise NotYet(f'{resource.removesuffix("s")} "{name}" not found')
    return decoded(found or {}, resource)


def decoded(value: Object, resource: str) -> dict[str, bytes]:
    """The keys of a secret or configMap, as bytes."""
    data = value.get("data") or {}
    if resource == "secrets":
        return {key: base64.b64decode(text) for key, text in data.items()}
    return {key: text.encode() for key, text in data.items()}


def _keys(data: dict[str, bytes], source: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    items = source.get("items")
    if items is None:
        yield from data.items()
        return
    for item in items:
        if item["key"] not in data:
            raise NotYet(f"references non-existent key: {item['key']}")
        yield item["path"], data[item["key"]]


def _check(mount: Mount, config: Config) -> None:
    if config.foreign_mounts:
        return
    if mount.source is not None:
        if not Path(mount.source).exists():
            raise BadMount(f"host path {mount.source} does not exist (mounted at {mount.path})")
        if os.path.realpath(mount.path) != os.path.realpath(mount.source):
            raise BadMount(
                f"{mount.path} would have to be {mount.source}: the double has no mount namespaces, "
                "a mountPath must be the volume's very host path"
            )
    elif mount.path not in SHARED and not is_scratch(mount.path, config):
        raise BadMount(
            f"{mount.path} is neither one of {SHARED} nor below Config.scratch {config.scratch}"
        )


def is_scratch(path: str, config: Config) -> bool:
    return any(Path(path).is_relative_to(prefix) for prefix in config.scratch)


def make(mounts: list[Mount], config: Config) -> list[str]:
    """Write what must exist at its mountPath; returns the folders to remove with the pod."""
    made = []
    for mount in mounts:
        if mount.content is None or mount.path in SHARED or not is_scratch(mount.path, config):
            continue
        for name, data in mount.content.items():
            path = Path(mount.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        Path(mount.path).mkdir(parents=True, exist_ok=True)
        made.append(mount.path)
    return made


def written_below(mounts: list[dict[str, Any]], since: float) -> list[str]:
    """List what changed below a read-only mount since the pod began, except below its writable mounts.

    It cannot tell who wrote: another process on this machine counts too. Large trees are looked at in part.
    """
    writable = [row["path"] for row in mounts if not row["read_only"]]
    found: list[str] = []
    seen = 0
    for root in (row["path"] for row in mounts if row["read_only"] and row["source"]):
        inner = [path for path in writable if Path(path).is_relative_to(root) and path != root]
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if f"{folder}/{name}" not in inner]
            seen += len(files)
            if seen > WALK_LIMIT:
                return found
            found += [path for name in files if _changed(path := f"{folder}/{name}", since)]
    return found


def _changed(path: str, since: float) -> bool:
    try:
        return os.lstat(path).st_ctime > since
    except OSError:
        return False
