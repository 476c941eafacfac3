"""Features of images by a model folder and of texts by a sentence encoder."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from laplacian_metric.encoder.libraries import SentenceBackbone
    from laplacian_metric.laplace.model_folder import ModelFolder
    from laplacian_metric.serve.index import Index


class QueryError(ValueError):
    """A query that cannot be answered as it is: its sender has to change it."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Makes features of images and texts; one at a time.

    Attributes:
        model: of images; its encoder has to be the one of the index.
        sentences: the encoder of texts.
    """

    model: ModelFolder | None = None
    sentences: SentenceBackbone | None = None
    _using: threading.Lock = field(default_factory=threading.Lock)

    @property
    def takes(self) -> list[str]:
        """What queries may be: "vector", "image" and "text"."""
        images = self.model is not None and self.model.preparation is not None
        texts = self.sentences is not None
        return ["vector", *(["image"] if images else []), *(["text"] if texts else [])]

    def check(self, index: Index) -> None:
        """Refuse an index of another encoder's features."""
        if self.model is None or index.encoder is None:
            return
        if (encoder := self.model.encoder.fingerprint()) != index.encoder:
            raise ValueError(
                f"the model's encoder {encoder[:12]} is not that of the index, {index.encoder[:12]}: pass the "
                "model that the index was built with"
            )

    def of_image(self, content: bytes) -> NDArray[Any]:
        """Return the features (1, H) of the bytes of an image file."""
        import torch

        from laplacian_metric.core.images import UnreadableImageError, decode_image

        if self.model is None or self.model.preparation is None:
            raise QueryError("images are not taken: pass --model, the model of the index")
        try:
            pixels = decode_image(io.BytesIO(content))
        except UnreadableImageError as error:
            raise QueryError(
                "the image does not decode: send the content of a PNG or JPEG file, say"
            ) from error
        encoder = self.model.encoder
        with self._using, torch.inference_mode():
            prepared = self.model.preparation.batch(pixels)[None]
            return encoder.features(prepared.to(encoder.head.weight.device)).float().cpu().numpy()

    def of_texts(self, texts: list[str]) -> NDArray[Any]:
        """Return the features (N, H) of texts."""
        import torch

        if self.sentences is None:
            raise QueryError("texts are not taken: pass --sentences, the sentence encoder of the index")
        with self._using, torch.inference_mode():
            rows: NDArray[Any] = self.sentences(texts).float().cpu().numpy()
            return rows


def load_inputs(model: Any, sentences: str | None, device: str) -> Inputs:
    """Return what embeds images and texts; without both torch is not loaded.

    Args:
        model: a model folder; None for no images.
        sentences: name or folder of a sentence encoder; None for no texts.
        device: where they compute.
    """
    folder = encoder = None
    if model is not None:
        from laplacian_metric.laplace.model_folder import ModelFolder

        folder = ModelFolder.load(model, device=device)
    if sentences is not None:
        from laplacian_metric.encoder.libraries import SentenceBackbone

        encoder = SentenceBackbone.from_name(sentences).eval()
    return Inputs(folder, encoder)
