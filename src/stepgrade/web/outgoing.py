"""Alert messages: allowed targets, their text, and deliveries that end at a deadline."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import os
import queue
import re
import smtplib
import socket
import ssl
import threading
import time
from contextlib import suppress
from email.message import EmailMessage
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import msgspec

from stepgrade.errors import BadOption
from stepgrade.report.blocks import Heading, Paragraph, Title, facts
from stepgrade.report.content.comparison import show_metric
from stepgrade.report.markdown import write
from stepgrade.report.names import shortened
from stepgrade.store.alerts import Alert, Channel, Message
from stepgrade.store.client import is_loopback
from stepgrade.units import show_delta
from stepgrade.web.settings import ServerSettings

EXCHANGE_S = 10.0
# DNS lookups cannot be interrupted; at most so many may hang.
_LOOK_UPS = threading.BoundedSemaphore(16)


class ExchangeCut(OSError):
    """The exchange timed out, or the server is shutting down."""


class BoundedExchange:
    """The lookups and connections of one exchange; the deadline ends them, or `cut` from any thread.

    A timeout per operation is not enough: a peer could send one byte at a time.
    """

    def __init__(self, seconds: float = EXCHANGE_S) -> None:
        self._end = time.monotonic() + seconds
        self._found: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.is_cut = False
        self._timer = threading.Timer(seconds, self.cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._hang_up()

    def look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; raise OSError if there are none in time."""
        if not _LOOK_UPS.acquire(blocking=False):
            raise ExchangeCut("too many DNS lookups are pending")

        def ask() -> None:
            try:
                self._found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, ValueError) as error:  # UnicodeError for an invalid name
                self._found.put(error)
            finally:
                _LOOK_UPS.release()

        threading.Thread(target=ask, name="stepgrade-look-up", daemon=True).start()
        rows = self._found.get()  # `cut` also puts something
        if isinstance(rows, Exception):
            raise rows if isinstance(rows, OSError) else OSError("the name is invalid")
        return sorted({str(row[4][0]) for row in rows})

    def connect(self, address: str, port: int) -> socket.socket:
        """Connect to an address; raise OSError if that fails or times out."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(max(0.0, self._end - time.monotonic()) + 1.0)  # `cut` comes first
        # Keep a second handle on the connection, since TLS takes over the first.
        with self._lock:
            self._sockets.append(made.dup())
        if self.is_cut:
            self._hang_up()
        try:
            made.connect((address, port))
        except OSError:
            made.close()
            raise
        return made

    def check(self) -> None:
        """Raise ExchangeCut if the exchange was cut."""
        if self.is_cut:
            raise ExchangeCut("timed out")

    def cut(self) -> None:
        """Abort everything that is pending."""
        with self._lock:
            self.is_cut = True
        self._found.put(ExchangeCut("timed out"))
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            one.close()


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


_MOST_ANSWER = 64 << 10
_EVENTS = {
    "opened": "got worse",
    "improved": "improved",
    "moved": "got worse, at another commit than it seemed",
    "reopened": "got worse again",
    "merged": "(part of another alert)",
    "withdrawn": "did not change, as more runs show",
    "resolved": "recovered",
    "waiver ended": "is still worse, and its waiver has expired",
    "test": "(test message)",
}


class NotSent(Exception):
    """A message was not delivered; the text never contains its target, which may be a secret."""


def addresses_of(host: str, port: int, settings: ServerSettings, exchange: BoundedExchange) -> list[str]:
    """Return the addresses of a host; raise NotSent if one is in the server's own network."""
    try:
        found = exchange.look_up(host, port)
    except ExchangeCut:
        raise
    except OSError:
        raise NotSent("the host name was not found") from None
    if not settings.private_webhooks and not all(map(is_public, found)):
        raise NotSent("the host's address is in the server's own network")
    return found


def post(
    url: str, body: bytes, headers: dict[str, str], settings: ServerSettings, exchange: BoundedExchange
) -> None:
    """Send a request to the checked address itself; raise NotSent unless it succeeds.

    Redirects are not followed: where they lead was not checked.
    """
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    connection = http.client.HTTPConnection(host, port, timeout=EXCHANGE_S)
    try:
        plain = exchange.connect(addresses_of(host, port, settings, exchange)[0], port)
        connection.sock = plain
        if is_tls:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        path = parts.path or "/"
        connection.request("POST", f"{path}?{parts.query}" if parts.query else path, body, headers)
        answer = connection.getresponse()
        exchange.check()  # a cut connection looks like the end of the headers
        with suppress(OSError, http.client.HTTPException):  # only the status matters
            answer.read(_MOST_ANSWER)
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise NotSent(f"status {answer.status}")


def link_to(alert: Alert, settings: ServerSettings) -> str:
    """Return the URL of the alert's page."""
    base = (settings.public_url or f"http://{settings.host}:{settings.port}").rstrip("/")
    return f"{base}/p/{quote(alert.project)}/alerts#alert-{alert.id}"


def sentence(alert: Alert, event: str) -> str:
    """Return the alert in one line."""
    moved = (
        f"{show_metric(alert.metric, alert.level_before)} to {show_metric(alert.metric, alert.level_after)}"
    )
    branch = f" on {shortened(alert.branch, 80)}" if alert.branch else ""
    commits = f", commits {commits_of(alert)}" if alert.first_commit else ""
    details = f"; {shortened(alert.details, 400)}" if alert.details else ""
    size = f"{moved} ({show_delta(alert.change)})"
    return f"{alert.project}: {alert.metric}{branch} {_EVENTS[event]}, {size}{commits}{details}"


def commits_of(alert: Alert) -> str:
    """Return the range of commits that an alert is about."""
    return "..".join(
        shortened((commit or "?")[:12], 12) for commit in (alert.last_commit, alert.first_commit)
    )


def markdown(alert: Alert, event: str, settings: ServerSettings) -> str:
    """Return the alert as Markdown for a comment; names are escaped."""
    rows = {
        "Between": f"run {alert.last_run} and run {alert.first_run}",
        "Commits": commits_of(alert),
    }
    blocks = (
        Title(f"{alert.metric} {_EVENTS[event]}", ""),
        Paragraph(sentence(alert, event)),
        facts(rows),
        Heading("Where"),
    )
    return write(blocks) + f"\n<{link_to(alert, settings)}>\n"


def payload(channel: Channel, alert: Alert, event: str, settings: ServerSettings) -> Any:
    """Return the message in the channel's own format."""
    text, link = sentence(alert, event), link_to(alert, settings)
    # Remove Slack's and Discord's markup, which a branch name may contain.
    plain = re.sub(r"[<>&*_`~|@]", " ", text)
    match channel.kind:
        case "slack":
            return {"text": f"{plain}\n<{link}|Show the alert>"}
        case "discord":
            return {"content": f"{plain}\n<{link}>", "allowed_mentions": {"parse": []}}
        case "teams":
            body = [{"type": "TextBlock", "text": plain, "wrap": True, "weight": "bolder"}]
            card = {
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": body,
                "actions": [{"type": "Action.OpenUrl", "title": "Show the alert", "url": link}],
            }
            content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
            return {"type": "message", "attachments": [content]}
        case "github":
            return {"body": markdown(alert, event, settings)}
        case "gitlab":
            return {"note": markdown(alert, event, settings)}
    return {"event": event, "alert": msgspec.to_builtins(alert), "text": text, "link": link}


def send(
    message: Message, channel: Channel, alert: Alert, settings: ServerSettings, exchange: BoundedExchange
) -> None:
    """Send a message; raise NotSent if that fails or times out."""
    try:
        check_channel(channel.kind, channel.target, channel.secret, settings)
        with exchange:
            if channel.kind == "email":
                send_mail(channel, alert, message.event, settings, exchange)
                return
            body = msgspec.json.encode(payload(channel, alert, message.event, settings))
            headers = {"content-type": "application/json", "user-agent": "stepgrade"}
            url = channel.target
            if channel.kind in _SENT_SECRETS:
                if alert.first_commit is None:
                    return  # nothing to comment on
                commit = quote(alert.first_commit, safe="")
                tail = "commits" if channel.kind == "github" else "repository/commits"
                url = f"{url.rstrip('/')}/{tail}/{commit}/comments"
                name = "authorization" if channel.kind == "github" else "private-token"
                headers[name] = f"Bearer {channel.secret}" if channel.kind == "github" else channel.secret
            elif channel.kind == "webhook":
                at = str(int(time.time()))
                headers |= {"x-stepgrade-delivery": str(message.id), "x-stepgrade-timestamp": at}
                headers["x-stepgrade-signature"] = signature(channel.secret, at, body)
            post(url, body, headers, settings, exchange)
    except BadOption as error:
        raise NotSent(str(error)) from None
    except (OSError, ValueError, http.client.HTTPException, smtplib.SMTPException) as error:
        # These errors may contain the target, so only their type is shown.
        late = f"no complete response within {EXCHANGE_S:.0f} s"
        raise NotSent(late if exchange.is_cut else f"no connection: {type(error).__name__}") from None


def signature(secret: str, at: str, body: bytes) -> str:
    """Return the HMAC signature of a webhook's body and timestamp."""
    return "sha256=" + hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()


def send_mail(
    channel: Channel, alert: Alert, event: str, settings: ServerSettings, exchange: BoundedExchange
) -> None:
    """Send a message by e-mail; raise the errors of smtplib or the connection."""
    mail = settings.mail
    if mail is None:
        raise NotSent("e-mail is not configured")
    letter = EmailMessage()
    subject = sentence(alert, event)
    letter["Subject"] = re.sub(r"[\x00-\x1f\x7f]", " ", subject)[:200]
    letter["From"], letter["To"] = mail.sender, channel.target
    letter.set_content(f"{subject}\n\n{link_to(alert, settings)}\n")
    with _MailExchange(exchange, mail.host, mail.port) as server:
        if mail.starttls:
            server.starttls(context=ssl.create_default_context())
        password = os.environ.get("STEPGRADE_SMTP_PASSWORD")
        if mail.user and password:
            server.login(mail.user, password)
        server.send_message(letter)


class _MailExchange(smtplib.SMTP):
    """SMTP over the connections of an exchange."""

    def __init__(self, exchange: BoundedExchange, host: str, port: int) -> None:
        self._exchange = exchange
        super().__init__(host, port, timeout=EXCHANGE_S)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:  # noqa: ARG002  its own
        return self._exchange.connect(self._exchange.look_up(host, port)[0], port)
