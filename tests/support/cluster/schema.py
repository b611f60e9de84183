"""Unknown fields and wrong types, read off the models of the official client: it holds every field of the API."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from kubernetes import client

from tests.support.cluster.errors import ApiError
from tests.support.cluster.resources import Resource

PLAIN: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "datetime": str,
}
LIST = re.compile(r"^[Ll]ist\[(.+)\]$")
DICT = re.compile(r"^[Dd]ict[\[(]str, (.+)[\])]$")


def model_of(resource: Resource) -> str:
    return resource.model or f"V1{resource.kind}"


def check_schema(resource: Resource, value: Any, *, strict: bool) -> None:
    """Refuse a body that does not fit, and drop what it does not know unless strict.

    Raises:
        ApiError: 400, a wrong type, or with `strict` an unknown field.
    """
    prefix = (
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    )
    wrong: list[str] = []
    unknown = list(_unknown(model_of(resource), value, "", wrong))
    if wrong:
        raise ApiError(400, f"{prefix}: json: {wrong[0]}")
    if unknown and strict:
        paths = ", ".join(f'unknown field "{path}"' for _, _, path in unknown)
        raise ApiError(400, f"{prefix}: strict decoding error: {paths}")
    for holder, key, _ in unknown:
        del holder[key]


def _unknown(
    type_name: str, value: Any, path: str, wrong: list[str]
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield the holder, key and path of each unknown field; note wrong types."""
    if value is None or type_name in ("object", "Any"):
        return
    if inner := LIST.match(type_name) or DICT.match(type_name):
        is_list = bool(LIST.match(type_name))
        if not isinstance(value, list if is_list else dict):
            wrong.append(_wrong(path, value, type_name))
            return
        parts = enumerate(value) if isinstance(value, list) else value.items()
        for key, part in parts:
            yield from _unknown(
                inner[1], part, f"{path}[{key}]" if is_list else f"{path}.{key}", wrong
            )
    elif type_name in PLAIN:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        fits = isinstance(value, PLAIN[type_name]) and (type_name != "int" or is_number)
        # A quantity may be written as a number.
        if not fits and not (type_name == "str" and is_number and _quantity(path)):
            wrong.append(_wrong(path, value, type_name))
    else:
        yield from _fields(type_name, value, path, wrong)


def _fields(
    type_name: str, value: Any, path: str, wrong: list[str]
) -> Iterator[tuple[dict[str, Any], str, str]]:
    if not isinstance(value, dict):
        wrong.append(_wrong(path, value, type_name))
        return
    known = _known(type_name)
    for key, part in value.items():
        where = f"{path}.{key}" if path else key
        if key not in known:
            yield value, key, where
        else:
            yield from _unknown(known[key], part, where, wrong)


@functools.cache
def _known(type_name: str) -> dict[str, str]:
    model = getattr(client, type_name)
    return {json: model.openapi_types[name] for name, json in model.attribute_map.items()}


def _quantity(path: str) -> bool:
    return any(part in path for part in (".limits.", ".requests.", ".hard.", ".capacity."))


def _wrong(path: str, value: Any, wanted: str) -> str:
    return f"cannot unmarshal {type(value).__name__} into field {path} of type {wanted}"
