"""Which data sets there are, and where their files were found, without reading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laplacian_metric import data
from laplacian_metric.data.lookup import MissingDataError, data_folders
from laplacian_metric.data.registry import _source
from laplacian_metric.data.source import Request

INSTALLED = "installed with the package"


class _FoundError(Exception):
    """Where a data set is; what ends the reading before it begins."""

    def __init__(self, place: Path) -> None:
        super().__init__(str(place))
        self.place = place


class _Probe(Request):
    """A request that stops once the files were found."""

    def find(self, *arguments: Any, **options: Any) -> Path:
        raise _FoundError(super().find(*arguments, **options))


@dataclass(frozen=True)
class State:
    """Whether a data set is there: where, or what to do."""

    name: str
    found: bool
    place: str
    problem: str = ""


def state(name: str, data_dir: Path | None = None) -> State:
    """Whether the files of a data set are in the data folders."""
    info = data.info(name)
    if name == "folder":
        return State(name, True, "any folder of images")
    probe = _Probe(info, info.splits[0], data_folders(data_dir))
    try:
        _source(name).read(probe)
    except _FoundError as found:
        return State(name, True, str(found.place))
    except MissingDataError as error:
        return State(name, False, "", str(error))
    except (ValueError, OSError) as error:
        return State(name, False, "", f"it is there, but damaged: {error}")
    return State(name, True, INSTALLED)
