"""Allowed targets of messages: valid addresses outside the server's own network."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from stepgrade.errors import BadOption
from stepgrade.store.client import is_loopback
from stepgrade.web.settings import ServerSettings

# Channels whose secret is sent in a header.
_SENT_SECRETS = ("github", "gitlab")
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_MOST_NAME = 253
# IANA's special-purpose ranges inside the global ones; Python's own list differs by version.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # protocol assignments
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.175.48.0/24",  # AS112
        "2001::/23",  # Teredo, benchmarks, ORCHID, AMT and other protocols
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address inside
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
# Addresses of hosts; excludes NAT64, IPv4-mapped, -translated and -compatible addresses.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_ISATAP = (0x00005EFE, 0x02005EFE)  # prefixes of interface ids that embed an IPv4 address


def is_public(text: str) -> bool:
    """Return whether an address is public: not in a special range, and not embedding another address."""
    try:
        address = ipaddress.ip_address(text)  # a zone means a link-local address
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and (
        address.scope_id is not None
        or address not in _GLOBAL_UNICAST
        or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP
    ):
        return False
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return not any(address in network for network in _NOT_PUBLIC if network.version == address.version)


def check_channel(kind: str, target: str, secret: str, settings: ServerSettings) -> None:
    """Raise BadOption for an invalid target or secret."""
    if kind in _SENT_SECRETS and not re.fullmatch(r"[\x21-\x7e]*", secret):
        raise BadOption("must be printable ASCII without spaces", field="secret")
    if "\0" in secret:
        raise BadOption("must not contain NUL", field="secret")
    if kind != "email":
        _check_url(target, settings)
        return
    if settings.mail is None:
        raise BadOption("e-mail is not configured", hint="the operator sets the mail server")
    user, _, host = target.rpartition("@")
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}", user) or not _is_name(host):
        raise BadOption("not an e-mail address", field="target")


def _is_name(host: str) -> bool:
    """Return whether a host name is valid: labels of 1 to 63 characters, 253 in total."""
    return len(host) <= _MOST_NAME and re.fullmatch(rf"{_LABEL}(?:\.{_LABEL})*", host) is not None


def _check_url(target: str, settings: ServerSettings) -> None:
    if not target.isascii() or re.search(r"[\x00-\x20\x7f]", target):
        raise BadOption("contains characters not allowed in a URL", field="target")
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadOption("not a URL", field="target") from None
    schemes = ("https", "http") if settings.private_webhooks else ("https",)
    if parts.scheme not in schemes or not host or parts.username is not None or port == 0:
        raise BadOption("must be an https:// URL without a password", field="target")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _is_name(host):
            raise BadOption("has an invalid host name", field="target") from None
        # Some resolvers accept numbers as addresses, such as 0x7f.1 or 2130706433.
        is_outside = not is_loopback(host) and "." in host and not re.fullmatch(r"(?i)[0-9a-fx.]+", host)
    else:
        is_outside = is_public(host)
    if not is_outside and not settings.private_webhooks:
        raise BadOption("an address in the server's own network is not allowed", field="target")
