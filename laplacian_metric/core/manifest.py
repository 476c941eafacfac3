"""What artifacts say about themselves, and what can be wrong with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from laplacian_metric.core import checked

B = TypeVar("B", bound=BaseModel)


class ArtifactError(ValueError):
    """An artifact cannot be read or written."""


class DamagedArtifactError(ArtifactError):
    """An artifact is not as it was written."""


class ForeignArtifactError(ArtifactError):
    """A folder holds something else."""


class NewerArtifactError(ArtifactError):
    """An artifact was written by a later version of this library."""


class MissingArtifactError(FileNotFoundError, ArtifactError):
    """There is no artifact."""


class NotAFolderError(NotADirectoryError, ArtifactError):
    """A folder is needed."""


class ArtifactExistsError(FileExistsError, ArtifactError):
    """There is something already that is not to be replaced."""


class ArtifactBusyError(BlockingIOError, ArtifactError):
    """Somebody else writes the same artifact."""


class ArtifactWriteError(OSError, ArtifactError):
    """An artifact cannot be written; what was there before still is."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class Strict(BaseModel):
    """Values of JSON, of exactly these names and types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FileEntry(Strict):
    """The size and the SHA-256 of a payload; None where an earlier version did not write it."""

    bytes: int | None = Field(ge=0)
    sha256: str | None = Field(pattern="^[0-9a-f]{64}$")


class Manifest(Strict):
    """Base class of what kinds of artifacts say about themselves.

    A kind adds its fields and sets the class variables. ``made_with`` and ``files`` are filled in when it is saved.
    Format, version and the manifest's own digest are in the file only.
    """

    FORMAT: ClassVar[str]  # such as "laplacian_metric index"; its last word names the kind in messages
    VERSION: ClassVar[int] = 1
    DIGEST_SINCE: ClassVar[int] = 1  # the first version whose manifests have a digest of their own
    FILE: ClassVar[str] = "manifest.json"
    PAYLOADS: ClassVar[tuple[str, ...]] = ()
    # Files that are written too, but that anybody may edit afterwards; other files of the folder are then kept too.
    EDITABLE: ClassVar[tuple[str, ...]] = ()

    made_with: dict[str, str] = {}
    files: dict[str, FileEntry] = {}

    def payloads(self) -> set[str]:
        """Return the names of the files that have to be there; kinds where these depend on fields override it."""
        return set(self.PAYLOADS)

    @classmethod
    def version_of(cls, values: Mapping[str, Any]) -> Any:
        """Return the version that the JSON of a manifest names; None where it is not of this kind."""
        return values.get("version") if values.get("format") == cls.FORMAT else None

    @classmethod
    def upgraded(cls, values: dict[str, Any], version: int) -> dict[str, Any]:
        """Return the fields of a manifest of an earlier version as those of this one."""
        return values

    @classmethod
    def noun(cls) -> str:
        """Return what messages call an artifact of this kind."""
        return cls.FORMAT.rpartition(" ")[2]


def validated(kind: type[B], values: Any, where: str, remedy: str = "copy it again, or save it again") -> B:
    """Return values of JSON as a model; the error names the entry that is missing or wrong."""
    return checked.validated(kind, values, where, remedy, DamagedArtifactError)


def parsed(text: str | bytes, where: str) -> dict[str, Any]:
    """Return an object of JSON; anything else, and numbers that JSON has no word for, are refused."""
    return checked.parsed(text, where, "copy it again", DamagedArtifactError)


def digest_of_dict(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of values of JSON, however they are laid out in a file."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
