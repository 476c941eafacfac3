"""An index in a folder: a saved `Trust`, and the encoder whose features it takes; numpy only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import Manifest
from laplacian_metric.core.checked import Strict
from laplacian_metric.core.gallery import open_gallery
from laplacian_metric.trust.guarantee import Guarantee
from laplacian_metric.trust.storage import TrustManifest
from laplacian_metric.trust.trust import Trust

TRUST = "trust"


class GuaranteeEntry(Strict):
    """A `Guarantee`."""

    threshold: float
    error: float
    confidence: float
    bound: float
    tested: int
    answered: int
    wrong: int


class IndexManifest(Manifest):
    """What the folder of an index says beside its `Trust`."""

    FORMAT: ClassVar[str] = "laplacian_metric index"
    PAYLOADS: ClassVar[tuple[str, ...]] = (TRUST,)

    encoder: str | None
    guarantee: GuaranteeEntry | None


class Neighbour(BaseModel):
    """An item near a query."""

    id: str | int
    label: str | int | float | bool | None
    distance: float = Field(description="1 - cosine")


class Reply(BaseModel):
    """The answer to one query."""

    probability: float | None = Field(
        description="That the nearest item is right; null where nothing was found."
    )
    verdict: str = Field(description="accept, unlike anything seen or no reliable match")
    because: str = Field(description="The input that speaks most against the answer.")
    nearest: str | int = Field(description="The id of the item that is answered.")
    label: str | int | float | bool | None = Field(description="Its label.")
    novelty: float | None = Field(description="Greater is less like anything seen.")
    neighbours: list[Neighbour]


@dataclass(frozen=True, eq=False)
class Index:
    """A `Trust`, the fingerprint of the encoder whose features it takes, and what its threshold promises.

    Attributes:
        trust: answers queries.
        encoder: fingerprint of the encoder; None where vectors came from elsewhere.
        guarantee: of the threshold; None without one.

    Example:
        >>> import tempfile
        >>> generator = np.random.default_rng(0)
        >>> labels = np.arange(400) % 4
        >>> h = np.eye(4)[labels] + 0.4 * generator.standard_normal((400, 4))
        >>> trust = Trust.fit((h[:200], labels[:200]), (h[200:], labels[200:]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Index(trust).save(folder)
        ...     index = Index.load(folder)
        >>> index.replies([[1.0, 0.0, 0.0, 0.1]], k=2)[0].label
        0
    """

    trust: Trust
    encoder: str | None = None
    guarantee: Guarantee | None = None

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write everything into a folder, which is there whole or not at all."""
        promised = None if self.guarantee is None else GuaranteeEntry(**vars(self.guarantee))
        manifest = IndexManifest(encoder=self.encoder, guarantee=promised)
        artifact.save(folder, manifest, {TRUST: self.trust.save}, overwrite=overwrite)

    @staticmethod
    def load(folder: str | os.PathLike[str], address: str | None = None) -> Index:
        """Read what `save` wrote, or a saved `Trust`.

        Args:
            folder: of the index.
            address: of its gallery with credentials, which are not saved; by default the saved address.
        """
        if artifact.format_of(folder) == TrustManifest.FORMAT:
            return Index(_trust(folder, address))
        with artifact.load(folder, IndexManifest) as opened:
            manifest = opened.manifest
            promised = None if manifest.guarantee is None else Guarantee(**manifest.guarantee.model_dump())
            return Index(_trust(opened.path(TRUST), address), manifest.encoder, promised)

    @property
    def dim(self) -> int:
        """The number of features of a query."""
        space = self.trust.spaces.of_features
        assert space is not None
        return space.dim

    def __len__(self) -> int:
        gallery = self.trust.spaces.gallery
        assert gallery is not None
        return len(gallery)

    def replies(self, h: Any, k: int = 1) -> list[Reply]:
        """Return the answer to each query of features (Q, H), with at most k of the nearest items."""
        answer = self.trust(h)
        neighbours = answer.neighbours
        assert neighbours is not None
        return [
            Reply(
                probability=_number(answer.probability[row]),
                verdict=str(answer.verdict[row]),
                because=str(answer.because[row]),
                nearest=_plain(answer.nearest[row]),
                label=None if answer.labels is None else _plain(answer.labels[row]),
                novelty=_number(answer.novelty[row]),
                neighbours=[
                    Neighbour(
                        id=_plain(neighbours.ids[row, place]),
                        label=None if neighbours.labels is None else _plain(neighbours.labels[row, place]),
                        distance=float(neighbours.distances[row, place]),
                    )
                    for place in range(min(k, neighbours.counts[row]))
                ],
            )
            for row in range(len(answer))
        ]


def _trust(folder: str | os.PathLike[str], address: str | None) -> Trust:
    """Read a `Trust`, whose galleries are opened at another address if there is one."""
    manifest = artifact.read_manifest(folder, TrustManifest)
    galleries = {
        name: open_gallery(address, entry.dim, **entry.fields)
        for name, entry in (("gallery", manifest.gallery), ("features", manifest.features))
        if address is not None and entry is not None
    }
    return Trust.load(folder, **galleries)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Return an id or a label as JSON has it; what UTF-8 cannot hold is escaped."""
    scalar = value.item() if isinstance(value, np.generic) else value
    if isinstance(scalar, (bool, int, float)):
        return scalar
    return str(scalar).encode("utf-8", "backslashreplace").decode("utf-8")
