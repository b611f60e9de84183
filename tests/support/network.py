"""What NetworkPolicies let through, between pods by their labels and to places outside."""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
Ports = frozenset[str]
ALL: Ports = frozenset({"all"})


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A pod, or a place outside the namespace."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: Mapping[str, str] | None = None
    """Labels of another namespace; None for a pod of ours, or for an address."""
    address: str | None = None

    @property
    def is_ours(self) -> bool:
        return self.namespace is None and self.address is None


def edges(policies: list[Object], peers: Iterable[Peer]) -> Iterator[tuple[str, str, str]]:
    """Yield (from, to, port) for everything that gets through; port is for instance `TCP 443`, or `all`."""
    everyone = list(peers)
    for source in everyone:
        for target in everyone:
            if source.is_ours or target.is_ours:
                ports = _meet(
                    _open(policies, source, target, "Egress"),
                    _open(policies, target, source, "Ingress"),
                )
                yield from ((source.name, target.name, port) for port in sorted(ports))


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector selects; an empty one selects all."""
    assert set(selector) <= {"matchLabels", "matchExpressions"}, selector
    wanted = selector.get("matchLabels", {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _holds(one, labels) for one in selector.get("matchExpressions", [])
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    assert expression["operator"] in ("In", "NotIn"), f"not known here: {expression}"
    is_in = labels.get(expression["key"]) in expression["values"]
    return is_in is (expression["operator"] == "In")


def _open(policies: list[Object], pod: Peer, other: Peer, direction: str) -> Ports:
    """Return the ports open at one end. A pod that no policy selects, and whatever is not ours, is open."""
    selecting = [
        policy["spec"]
        for policy in policies
        if pod.is_ours
        and direction in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], pod.labels)
    ]
    if not selecting:
        return ALL
    key, side = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    rules = [rule for spec in selecting for rule in spec.get(key, [])]
    found = [
        _ports(rule)
        for rule in rules
        if side not in rule or any(_fits(one, other) for one in rule[side])
    ]
    return ALL if ALL in found else frozenset().union(*found)


def _ports(rule: Object) -> Ports:
    if "ports" not in rule:
        return ALL
    return frozenset(f"{port['protocol']} {port['port']}" for port in rule["ports"])


def _fits(peer: Object, other: Peer) -> bool:
    if "ipBlock" in peer:
        return other.address is not None and _inside(peer["ipBlock"], other.address)
    if other.address is not None:
        return False
    if (other.namespace is None) == ("namespaceSelector" in peer):
        return False
    if other.namespace is not None and not matches(peer["namespaceSelector"], other.namespace):
        return False
    return matches(peer.get("podSelector", {}), other.labels)


def _inside(block: Object, address: str) -> bool:
    where = ipaddress.ip_address(address)
    within = [where in ipaddress.ip_network(cidr) for cidr in block.get("except", [])]
    return where in ipaddress.ip_network(block["cidr"]) and not any(within)


def _meet(one: Ports, two: Ports) -> Ports:
    if one == ALL:
        return two
    return one if two == ALL else one & two
