"""The server's settings. There are three access modes; inconsistent settings are rejected at startup."""

from __future__ import annotations

import ipaddress
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from stepgrade.errors import BadOption
from stepgrade.store.client import is_loopback

Access = Literal["localhost", "tokens", "proxy"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Mail(Struct, frozen=True, kw_only=True):
    """The SMTP server; its password is in STEPGRADE_SMTP_PASSWORD."""

    host: str
    port: int = 587
    sender: str = "stepgrade@localhost"
    user: str | None = None
    starttls: bool = True


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Everything that an operator configures."""

    location: str | None = None
    host: str = "127.0.0.1"
    port: int = 8765
    access: Access = "localhost"
    trusted_proxies: tuple[str, ...] = ()
    proxy_admins: tuple[str, ...] = ()  # users or groups, as the proxy names them
    proxy_uploaders: tuple[str, ...] = ()
    public_url: str | None = None  # as browsers see it, behind a proxy
    tls_cert: str | None = None
    tls_key: str | None = None
    workers: int = 1
    most_connections: int = 1_000  # per process
    connections_per_address: int = 200
    most_bytes: int = 2 << 20  # of a decompressed body; a scorecard is a few hundred kilobytes
    uploads_per_minute: int = 120  # per token
    accepts_traces: bool = False
    most_trace_bytes: int = 64 << 20
    most_trace_s: float = 120.0
    trace_memory: int = 4 << 30  # of all scoring processes together
    private_webhooks: bool = False  # allow webhooks to the server's own network
    mail: Mail | None = None

    @property
    def is_secure(self) -> bool:
        """Return whether browsers use TLS."""
        return self.tls_cert is not None or (self.public_url or "").startswith("https://")

    @property
    def networks(self) -> tuple[Network, ...]:
        """Return the addresses of trusted proxies."""
        return tuple(ipaddress.ip_network(text, strict=False) for text in self.trusted_proxies)

    @property
    def origins(self) -> frozenset[str]:
        """Return the server's own origins, as browsers send them."""
        scheme = "https" if self.tls_cert else "http"
        names = LOOPBACK_NAMES if is_loopback(self.host) else (self.host,)
        own = {f"{scheme}://{f'[{name}]' if ':' in name else name}:{self.port}" for name in names}
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            own.add(f"{parts.scheme}://{parts.netloc}")
        return frozenset(own)

    @property
    def hosts(self) -> frozenset[str] | None:
        """Return the allowed Host headers; None allows any, since tokens protect the server then."""
        if self.access != "localhost":
            return None
        return frozenset(urlsplit(origin).hostname or "" for origin in self.origins)


def _check_proxies(settings: ServerSettings) -> None:
    if (settings.access == "proxy") != bool(settings.trusted_proxies):
        raise BadOption(
            "a proxy is trusted by its address, and only in this mode",
            supply="{trusted_proxy}",
        )
    for text in settings.trusted_proxies:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise BadOption(f"{text!r} is not an address or network", field="trusted_proxy") from None
        if network.prefixlen == 0:
            raise BadOption("this would trust everyone", field="trusted_proxy")


def check(settings: ServerSettings) -> ServerSettings:
    """Return the settings; raise BadOption if they are inconsistent."""
    if settings.access == "localhost" and not is_loopback(settings.host):
        raise BadOption(
            f"without authentication the server must listen on localhost, not on {settings.host}",
            field="host",
            supply="{tokens} or {trusted_proxy}",
        )
    _check_proxies(settings)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise BadOption("a certificate needs a key", supply="{tls_cert} and {tls_key}")
    if settings.public_url is not None:
        parts = urlsplit(settings.public_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise BadOption("must be like https://stepgrade.example.org", field="public_url")
    if settings.access == "tokens" and not settings.is_secure and not is_loopback(settings.host):
        raise BadOption(
            "tokens would be sent over the network unencrypted",
            supply="{tls_cert} and {tls_key}, or {public_url} if a proxy terminates TLS",
        )
    if not 0 <= settings.port < 65_536:
        raise BadOption("must be from 0 to 65,535", field="port")
    if not 1 <= settings.workers <= 64:
        raise BadOption("must be from 1 to 64", field="workers")
    if settings.accepts_traces and settings.trace_memory // settings.workers < 512 << 20:
        raise BadOption("must be at least 512 MiB per process", field="trace_memory")
    if not 1 <= settings.connections_per_address <= settings.most_connections <= 100_000:
        raise BadOption("must be from 1 to 100,000, and not less than per address", field="max_connections")
    return settings
