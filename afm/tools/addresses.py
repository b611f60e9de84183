"""Which addresses a page may be fetched from: public ones, checked on the very address that is connected to.

A name is not checked: its address is, once it is resolved and before a socket is connected to it. So neither a
redirect nor a name that resolves to another address the second time (DNS rebinding) leads into a private network.
"""

import ipaddress
import socket
from typing import Any

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_TRANSLATED = ipaddress.IPv6Network("64:ff9b:1::/48")
_PLATFORM = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Addresses that are public by range and private in use: a cloud's platform service."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(OSError):
    """An address that pages may not be fetched from."""


def is_public(text: str) -> bool:
    """Tell whether an IP address is one of the public internet, whatever it is wrapped in."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(one) for one in _unwrapped(address))


def _is_public(address: IPAddress) -> bool:
    is_site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    special = address.is_multicast or address.is_reserved or is_site_local
    return address.is_global and not special and address not in _PLATFORM


def _unwrapped(address: IPAddress) -> list[IPAddress]:
    """Return an address and the IPv4 addresses that IPv6 can carry inside."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inner: list[IPAddress] = [address]
    if address.sixtofour is not None:
        inner.append(address.sixtofour)
    if address.teredo is not None:
        inner.extend(address.teredo)
    if address in _TRANSLATED or address in _LOCAL_TRANSLATED:
        inner = [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    return inner


def guarded_socket(address_info: tuple[Any, ...]) -> socket.socket:
    """Make the socket for one resolved address (aiohttp's `socket_factory`).

    Raises:
        AddressRefused: the address is not public.
    """
    family, kind, protocol, _, target = address_info
    if not is_public(str(target[0])):
        raise AddressRefused(f"{target[0]} is not a public address")
    return socket.socket(family, kind, protocol)


def was_refused(error: BaseException | None) -> bool:
    """Tell whether an address was refused somewhere below an error."""
    if error is None or isinstance(error, AddressRefused):
        return error is not None
    below = [error.__cause__, getattr(error, "os_error", None)]
    below.extend(getattr(error, "exceptions", ()))
    return any(was_refused(one) for one in below if one is not error)
