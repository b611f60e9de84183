"""YAML as plain data, parsed by libyaml where PyYAML has it: ten times as fast, and params are read often."""

from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str | bytes) -> Any:
    """Parse one document.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, LOADER)
