"""Reading a params file and cutting out one section; knows no section, so a stage depends on its own alone."""

import pickle
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from afm.errors import UserError
from afm.params._model import Section
from afm.plain_yaml import parse_yaml

SectionT = TypeVar("SectionT", bound=Section)


def read_tree(path: Path) -> dict[str, Any]:
    """Read a YAML file as plain data, anew each time and parsed once for each content.

    Raises:
        UserError: missing file, malformed YAML, no mapping.
    """
    try:
        tree = pickle.loads(_pickled(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UserError(f"no such params file: {path}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a mapping, got {type(tree).__name__}")
    return tree


@lru_cache(maxsize=4)
def _pickled(text: str) -> bytes:
    """Parse YAML; as bytes, so that each reader gets data of its own."""
    return pickle.dumps(parse_yaml(text))


def cut(tree: dict[str, Any], key: str, *, where: str) -> Any:
    """Return the value at a dotted key.

    Raises:
        UserError: the key does not exist; the message lists what does.
    """
    node: Any = tree
    walked: list[str] = []
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            known = sorted(node) if isinstance(node, dict) else []
            raise UserError(
                f"{where}: no {part!r} in {'.'.join(walked) or 'the file'}; it has {known}"
            )
        node = node[part]
        walked.append(part)
    return node


def parse_section(value: Any, section: type[SectionT], *, where: str) -> SectionT:
    """Check plain data against a section.

    Raises:
        UserError: one line per fault: key, what is wrong, the value, and what is allowed.
    """
    try:
        return section.model_validate(value)
    except ValidationError as error:
        faults = error.errors()
        inner = {fault["loc"][:length] for fault in faults for length in range(len(fault["loc"]))}
        lines = [_explain(fault, section, where) for fault in faults if fault["loc"] not in inner]
        raise UserError("\n".join(lines)) from error


def _explain(fault: Any, section: type[Section], where: str) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        allowed = _allowed_keys(section, fault["loc"][:-1])
        return f"{where}: unknown key {key!r}; allowed here: {allowed}"
    if fault["type"] == "missing":
        return f"{where}: missing key {key!r}"
    if fault["type"] == "value_error":
        return f"{where}: {key + ': ' if key else ''}{fault['ctx']['error']}"
    return f"{where}: {key or 'value'}: {fault['msg']}; got {repr(fault['input'])[:80]}"


def _allowed_keys(section: type[Section], loc: tuple[str | int, ...]) -> str:
    current: Any = section
    for part in loc:
        fields = getattr(current, "model_fields", {})
        annotation = fields[part].annotation if part in fields else None
        nested = getattr(annotation, "__args__", (annotation,))[-1]
        current = nested if nested is not None else current
    return ", ".join(sorted(getattr(current, "model_fields", {}))) or "none"
