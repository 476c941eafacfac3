"""Whether an encoder is still the one that a posterior is of."""

from __future__ import annotations

from itertools import chain

from torch import Tensor

from laplacian_metric.encoder import Encoder


class EncoderChangedError(RuntimeError):
    """The encoder has other weights than when the posterior was made."""


class Watch:
    """An encoder's fingerprint, computed anew only when a tensor was written to or replaced.

    torch counts the writes to a tensor, except those that go through ``.data``, which are not seen until something
    else changes.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.fingerprint = encoder.fingerprint()
        self._tensors, self._marks = _marks(encoder)

    def check(self, fingerprint: str) -> None:
        """Refuse an encoder that does not have this fingerprint any more."""
        tensors, marks = _marks(self.encoder)
        if marks != self._marks:
            self.fingerprint = self.encoder.fingerprint()
            self._tensors, self._marks = tensors, marks
        if self.fingerprint != fingerprint:
            raise EncoderChangedError(
                "the encoder has changed since this posterior was fitted, which is around its former weights: fit "
                "again, or load the weights that it had"
            )


def _marks(encoder: Encoder) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """All tensors, which are kept so that no other takes their place in memory, and what changes when they do."""
    tensors = list(chain(encoder.parameters(), encoder.buffers()))
    marks = [(id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
    return tensors, [(int(encoder.normalize),), *marks]
