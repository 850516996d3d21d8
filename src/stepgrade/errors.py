"""Every error that stepgrade raises on purpose.

    StepgradeError              printed as one line; `exit_code` ends the process
    ├── BadInput                an invalid file or text (a ValueError)
    │   ├── BadJson             invalid JSON; `where` is the JSON path
    │   ├── UnknownFormat       no reader recognises the content, or has that name
    │   ├── TooLarge            larger than the limit
    │   ├── BadHistory          a history that cannot be opened, read or written
    │   │   ├── NoHistory       not found
    │   │   ├── DamagedHistory  part of it is damaged; the rest may be readable
    │   │   ├── Unreachable     the server does not answer
    │   │   ├── OddAnswer       not a stepgrade server, or an unknown version
    │   │   ├── NotLetIn        authentication required, or permission denied
    │   │   ├── NoSuchRun       no run with that number
    │   │   ├── KeyTaken        the key belongs to another run
    │   │   └── BadValue        a value that cannot be stored or searched for
    │   ├── BadConfig           an invalid stepgrade.toml
    │   └── UnknownArchitecture a model whose costs are not modelled
    ├── UnknownDevice           a device that is not in the catalogue (a LookupError)
    ├── BadOption               options that conflict, or need another
    ├── MissingExtra            an optional package that is not installed
    └── NotMeasured             the profile lacks what is needed
        └── EngineFailed        the engine is gone, or of another version

Anything else that escapes is a bug in stepgrade and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Self

EXIT_OK = 0
EXIT_GATE = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_MEASURED = 3
EXIT_BUG = 70


# Errors of the machine that any program can meet: not bugs of ours.
_REFUSALS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.ENOLCK, errno.ESTALE),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM, errno.EPIPE),
        *(errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ENOTCONN),
    }
)
# Longer than any of our names: comparing more only takes time.
_MOST_NAME = 60
_OUR_SECRETS = "STEPGRADE_TOKEN|STEPGRADE_SMTP_PASSWORD|PGPASSWORD|AWS_SECRET_ACCESS_KEY|AWS_SESSION_TOKEN"
_ANY_SECRET = r".*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|_KEY|CONNECTION_STRING)"  # noqa: S105  names
# Shorter values are ordinary words, and too short to be a secret.
_LEAST_OF_OURS, _LEAST_OF_ANY = 5, 8


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was most likely meant: by its start, else the most similar."""
    from difflib import get_close_matches  # only for what is misspelt

    wanted = name.casefold()[:_MOST_NAME].lstrip("-")
    names = {other.casefold().lstrip("-"): other for other in known}
    begun = [other for other in names if other.startswith(wanted)] if len(wanted) > 1 else []
    alike = begun[:1] or get_close_matches(wanted, names, n=1, cutoff=0.6)
    return names[alike[0]] if alike else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the name that was most likely meant, else with all known names."""
    names = tuple(known)
    meant = nearest(name, names)
    return f"did you mean {meant}?" if meant else f"one of {', '.join(names)}"


def name_fields(template: str, flags: Mapping[str, str]) -> str:
    """Return the template with each {parameter} replaced by its flag, if it has one."""
    parts = template.replace("}", "{").split("{")
    return "".join(flags.get(part, part) if index % 2 else part for index, part in enumerate(parts))


def without_secrets(text: str) -> str:
    """Return a message without our token and without passwords in URLs and connection settings."""
    text = without_tokens(text)
    lower = text.lower()
    if not any(sign in lower for sign in ("://", "postgres", "password", "pwd", "@", "\uff20")):
        return text
    import re  # only for such texts

    # A password may hold any character, so all is left out between the user's colon and the last @; without
    # anything that looks like a URL, only what has no space in it. Signs may be of full width, or escaped.
    user, colon, sign = r"[^:\uff1a@\uff20/\s]*", r"(?:[:\uff1a]|%3a)", r"[@\uff20]"
    text = re.sub(rf"(?i)((?:://|postgres\w*:/?)\s*{user}?){colon}(?!//)[^\n]*{sign}", r"\1:…@", text)
    text = re.sub(rf"(?i)({user}?){colon}(?!//)[^\s@\uff20…]+{sign}", r"\1:…@", text)
    text = re.sub(r"(://[^:@/\s]*):(?!\d+(?:[/?\s'\")]|$))(?!…@)[^\s'\"]+", r"\1:…", text)
    return re.sub(r"(?i)((?:password|pwd)\s*=\s*)('(?:[^'\\]|\\.)*'|(?:\\.|[^&;\s\\])*)", r"\1…", text)


def crash_text(text: str) -> str:
    """Return a traceback without passwords and without any secret of the environment."""
    return without_secrets(without_tokens(text, _ANY_SECRET, _LEAST_OF_ANY))


def without_tokens(text: str, names: str = _OUR_SECRETS, least: int = _LEAST_OF_OURS) -> str:
    """Return a text without the values of such environment variables, however Python prints them."""
    import re  # only when something is wrong
    from urllib.parse import quote

    found = set()
    for name, value in os.environ.items():
        if not re.fullmatch(names, name, re.IGNORECASE):
            # A proxy or database URL with its password.
            if not (given := re.match(r"\w+://[^:/@\s]*:([^@\s]+)@", value)):
                continue
            value = given[1]  # noqa: PLW2901
        raw = os.fsencode(value)
        found |= {value, ascii(value)[1:-1], repr(value)[1:-1], repr(raw)[2:-1], quote(raw)}
        found |= set(re.split(r"[^A-Za-z0-9._~+/=-]+", value))  # the parts, if it is quoted some other way
    for secret in sorted((one for one in found if len(one) >= least), key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def refusal_of(error: Exception) -> str | None:
    """Return what the machine refused, such as a write to a full disk; None for any other error."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "the system cannot start more threads (stop other programs, or raise the limit: ulimit -u)"
    if not isinstance(error, OSError) or error.errno not in _REFUSALS:
        return None
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return f"{where}the system refused: {error.strerror or error}"


class StepgradeError(Exception):
    """An error with its problem, location and fix."""

    exit_code = EXIT_BAD_INPUT

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        field: str | None = None,
        supply: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.hint = hint
        self.field = field  # the parameter that is wrong, by its name in Python
        self.supply = supply  # what to give instead, with parameters as {name}: "{device} or {peak_bw_gb_s}"

    def __str__(self) -> str:
        return self.text({})

    def text(self, flags: Mapping[str, str]) -> str:
        """Return the message, with parameters named as in `flags`."""
        field = flags.get(self.field, self.field).split(" ")[0] if self.field else None
        place = "".join(f"{part}: " for part in (self.where, field) if part)
        supply = f"give {name_fields(self.supply, flags)}" if self.supply else None
        advice = "; ".join(part for part in (self.hint, supply) if part)
        return without_secrets(f"{place}{self.problem}{f' ({advice})' if advice else ''}")

    def at(self, place: str) -> Self:
        """Return this error with `place` (a file name) prepended to its location."""
        where = f"{place}: {self.where}" if self.where else place
        return type(self)(self.problem, where=where, hint=self.hint, field=self.field, supply=self.supply)


class BadInput(StepgradeError, ValueError):
    """An invalid file or text."""


class BadJson(BadInput):
    """Invalid JSON; `where` is the JSON path."""


class UnknownFormat(BadInput):
    """Content that no reader recognises, or an unknown reader."""


class TooLarge(BadInput):
    """More bytes than the limit allows."""


class BadHistory(BadInput):
    """A history that cannot be opened, read or written."""


class DamagedHistory(BadHistory):
    """Part of the history is damaged; the rest may be readable."""


class NoHistory(BadHistory):
    """The history was not found."""


class Unreachable(BadHistory):
    """The server does not answer."""


class OddAnswer(BadHistory):
    """The answer is not from a stepgrade server, or from an unknown version."""


class NotLetIn(BadHistory):
    """Authentication required, or permission denied."""


class NoSuchRun(BadHistory):
    """No run has that number."""


class KeyTaken(BadHistory):
    """The key belongs to another run."""


class BadValue(BadHistory):
    """A value that cannot be stored or searched for."""


class BadConfig(BadInput):
    """An invalid stepgrade.toml."""


class UnknownArchitecture(BadInput):
    """A model whose costs are not modelled."""


class UnknownDevice(StepgradeError, LookupError):
    """A device that is not in the catalogue."""


class BadOption(StepgradeError, ValueError):
    """Options that conflict, or need another."""


class MissingExtra(StepgradeError, ImportError):
    """An optional package that is not installed; the hint says how to install it."""


class NotMeasured(StepgradeError):
    """The profile lacks what is needed."""

    exit_code = EXIT_NOT_MEASURED


class EngineFailed(NotMeasured):
    """The engine is gone, or has another version."""
