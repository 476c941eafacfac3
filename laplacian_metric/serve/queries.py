"""From what a request holds to a query: vectors by numpy alone, images and texts by a model."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.vector_search import Vectors
from laplacian_metric.retrieval.items import Items

if TYPE_CHECKING:
    from laplacian_metric.encoder.sentences import SentenceBackbone
    from laplacian_metric.laplace.model_folder import ModelFolder


class QueryError(ValueError):
    """A query that cannot be answered as it is: its sender has to change it."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """One query: its distribution, and its features (1, H) where the index has a `Trust`."""

    items: Items
    features: NDArray[np.float32] | None = None
    known_kappa: bool = True

    @property
    def kind(self) -> tuple[bool, bool]:
        """What queries need to have in common to be answered together."""
        return self.features is None, self.known_kappa


def as_query(
    retriever: Any,
    *,
    embedding: Sequence[float] | None = None,
    features: Sequence[float] | None = None,
    kappa: float | None = None,
    uncertainty: float | None = None,
) -> Embedded:
    """Return a query of an index or a collection.

    Args:
        retriever: the index or the collection.
        embedding: (Z,), of any length; not needed with features where there is a `Trust`, which has the head.
        features: (H,), which an index with `Trust` needs.
        kappa: of the query; infinite where it is not known, and then match probabilities are left out.
        uncertainty: needed where an index without `Trust` has a threshold.
    """
    rows = None if features is None else _row("features", features)
    trust = retriever.trust
    if trust is not None:
        if rows is None:
            raise QueryError("features are missing: this index says what to trust by the features of a query")
        if rows.shape[1] != trust.gallery.width:
            raise QueryError(f"features has {rows.shape[1]} numbers, {trust.gallery.width} are needed")
        try:
            point = Vectors.of("features", rows) if trust.head is None else trust.head.embed(rows)
        except ValueError as error:
            raise QueryError(str(error)) from error
        mean = point.unit(slice(None))
    else:
        if embedding is None:
            raise QueryError("embedding is missing: this index has no Trust, and no head for features")
        vector, rows = _row("embedding", embedding), None
        if vector.shape[1] != retriever.dim:
            raise QueryError(f"embedding has {vector.shape[1]} numbers, {retriever.dim} are needed")
        mean = Vectors.of("embedding", vector).unit(slice(None))
        if retriever.threshold is not None and uncertainty is None:
            raise QueryError("uncertainty is missing: this index refuses queries by it")
    items = Items(
        mean.astype(np.float32),
        [np.inf if kappa is None else kappa],  # type: ignore[arg-type]
        [0.0 if uncertainty is None else uncertainty],  # type: ignore[arg-type]
        None,
        retriever.source,
    )
    return Embedded(items, rows, kappa is not None)


def _row(name: str, values: Sequence[float]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        row = np.array([values], dtype=np.float64).astype(np.float32)
    if not np.isfinite(row).all():
        raise QueryError(f"{name} has a number that float32 does not hold")
    if not row.any():
        raise QueryError(f"{name} is zero: a vector without a direction has no nearest item")
    return row


class Inputs:
    """Makes queries of images by a model folder, or of texts by a sentence encoder; one at a time.

    Args:
        model: embeds images; its posterior has to be the one that embedded the items.
        sentences: makes features of texts, which the model embeds; without a model the index needs a `Trust`.
    """

    def __init__(self, model: ModelFolder | None = None, sentences: SentenceBackbone | None = None) -> None:
        self.model, self.sentences = model, sentences
        self._using = threading.Lock()

    @property
    def takes_images(self) -> bool:
        """Whether it embeds images."""
        return self.model is not None and not self.model.takes_features

    @property
    def takes_text(self) -> bool:
        """Whether it embeds texts."""
        return self.sentences is not None

    def check(self, retriever: Any) -> None:
        """Refuse an index whose items another model has embedded."""
        if self.model is not None and (source := self.model.lam.fingerprint()) != retriever.source:
            raise ValueError(
                f"the model {source[:12]} is not the one that embedded the items, {retriever.source[:12]}: pass the "
                "model that the index was built with"
            )

    def of_image(self, retriever: Any, content: bytes) -> Embedded:
        """Return a query of the bytes of an image file."""
        import torch

        from laplacian_metric.core.images import UnreadableImageError, decode_image

        if self.model is None or self.model.preparation is None:
            raise QueryError("images are not taken: start the service with --model, the model of the index")
        try:
            pixels = decode_image(io.BytesIO(content))
        except UnreadableImageError as error:
            raise QueryError(
                "the image does not decode: send the content of a PNG or JPEG file, say"
            ) from error
        with self._using, torch.inference_mode():
            prepared = self.model.preparation.batch(pixels)[None]
            device = self.model.encoder.head.weight.device
            return self._of_features(retriever, self.model.encoder.features(prepared.to(device)))

    def of_text(self, retriever: Any, text: str) -> Embedded:
        """Return a query of a text."""
        import torch

        if self.sentences is None:
            raise QueryError(
                "texts are not taken: start the service with --text, the sentence encoder of the index"
            )
        with self._using, torch.inference_mode():
            return self._of_features(retriever, self.sentences([text]))

    def _of_features(self, retriever: Any, features: Any) -> Embedded:
        rows = features.float().cpu().numpy()
        if self.model is None:
            if retriever.trust is None:
                return as_query(retriever, embedding=rows[0])
            return as_query(retriever, features=rows[0])
        embedding = self.model.lam.embed_features(features).to("cpu")
        if retriever.trust is None:
            return Embedded(Items.of(embedding, variance=False))
        query = as_query(retriever, features=rows[0], kappa=float(embedding.kappa[0]))
        return Embedded(query.items, rows)
