"""Quantities ("500m", "16Gi") and what a pod asks for."""

import math
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

GPU = "nvidia.com/gpu"
Amounts = dict[str, Decimal]


def amounts(values: dict[str, Any] | None) -> Amounts:
    return {
        name: parse_quantity(value)  # type: ignore[no-untyped-call]
        for name, value in (values or {}).items()
    }


def requests(pod: dict[str, Any]) -> Amounts:
    """Sum what the containers ask for; an init container counts where it asks for more than all of them."""
    total: Amounts = {}
    for container in pod["spec"].get("containers", []):
        for name, value in _asked(container, "requests").items():
            total[name] = total.get(name, Decimal(0)) + value
    for container in pod["spec"].get("initContainers", []):
        for name, value in _asked(container, "requests").items():
            total[name] = max(total.get(name, Decimal(0)), value)
    return total


def limits(pod: dict[str, Any]) -> Amounts:
    total: Amounts = {}
    for container in pod["spec"].get("containers", []):
        for name, value in _asked(container, "limits").items():
            total[name] = total.get(name, Decimal(0)) + value
    return total


def memory_limit(container: dict[str, Any]) -> int | None:
    """In bytes."""
    value = _asked(container, "limits").get("memory")
    return None if value is None else math.ceil(value)


def gpus(pod: dict[str, Any]) -> int:
    return int(requests(pod).get(GPU, 0))


def text(value: Decimal) -> str:
    """Render as the API would: whole numbers plain, fractions in thousandths, binary units where they fit."""
    if value != value.to_integral_value():
        return f"{math.ceil(value * 1000)}m"
    whole = int(value)
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if whole >= size and whole % size == 0:
            return f"{whole // size}{unit}"
    return str(whole)


def _asked(container: dict[str, Any], what: str) -> Amounts:
    resources = container.get("resources") or {}
    asked = amounts(resources.get(what))
    if what == "requests":
        return amounts(resources.get("limits")) | asked
    return asked
