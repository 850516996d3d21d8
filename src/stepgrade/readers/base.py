"""What a reader is: a name, one line about it, and two questions it answers."""

from __future__ import annotations

from typing import Protocol

from stepgrade.model import Profile
from stepgrade.readers.content import Content


class Reader(Protocol):
    """A module, or any object, that turns one format into a Profile.

    Built-in readers are the modules of this package. A plug-in names its reader in the entry
    point group `stepgrade.readers`.
    """

    NAME: str
    SUMMARY: str

    def recognises(self, content: Content) -> bool:
        """Tell by its bytes, not by its name, whether the source is in this format."""

    def read(self, content: Content) -> Profile:
        """Return the profile; raise BadInput with the place of what is wrong."""
