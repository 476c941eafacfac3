"""The fingerprint of a collection, by which a change that something else made is noticed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.retrieval.engines.engine import LABEL, Engine, Floats, Records

BITS = 128
TOLERANCE = 1e-4  # of a trace that is computed anew from vectors that an engine has rounded


@dataclass(frozen=True)
class Fingerprint:
    """The number of items, and the sum over them of a hash of id, label, kappa, uncertainty and traces.

    It does not depend on the order of the items, so that items come and go without a look at the others.

    Example:
        >>> records = Records(np.array([7, 9]), {}, {"kappa": np.array([1.0, 2.0])})
        >>> Fingerprint.of(records) == Fingerprint.of(records[[1]]).plus(records[[0]])
        True
    """

    count: int = 0
    total: int = 0

    @property
    def text(self) -> str:
        """The sum as text."""
        return f"{self.total:032x}"

    @staticmethod
    def of(records: Records) -> Fingerprint:
        """Return the fingerprint of some items."""
        names = [name for name in ("kappa", "uncertainty", "trace_z", "trace_h") if name in records.payload]
        # Engines keep numbers in float32 or float64; what a file of the other would round does not count.
        numbers = np.stack([records.payload[name].astype(np.float32) for name in names], axis=1)
        rounded = np.ascontiguousarray(np.where(np.isnan(numbers), -np.inf, numbers)).view(np.uint8)
        labels = records.payload[LABEL].tolist() if LABEL in records.payload else [None] * len(records)
        total = 0
        for name, label, row in zip(records.ids.tolist(), labels, rounded, strict=True):
            content = f"{name!r}|{label!r}|".encode() + row.tobytes()
            total += int.from_bytes(hashlib.blake2b(content, digest_size=BITS // 8).digest(), "little")
        return Fingerprint(len(records), total % (1 << BITS))

    @staticmethod
    def of_engine(engine: Engine, *, vectors: bool = False) -> Fingerprint:
        """Return the fingerprint of all items of an engine.

        Args:
            engine: whose items are read.
            vectors: read the vectors too; where one does not have the trace that is beside it, the item does not
                count as the one that was written.
        """
        now = Fingerprint()
        for records in engine.scroll(tuple(engine.dims) if vectors else ()):
            same = np.ones(len(records), dtype=bool)
            for space, rows in records.vectors.items():
                traces = records.payload.get(f"trace_{space}", np.full(len(records), np.nan))
                same &= np.abs(traces_of(rows) - traces) <= TOLERANCE
            now = now.plus(records[same])
        return now

    def plus(self, records: Records) -> Fingerprint:
        """Return the fingerprint with further items."""
        more = Fingerprint.of(records)
        return Fingerprint(self.count + more.count, (self.total + more.total) % (1 << BITS))

    def minus(self, records: Records) -> Fingerprint:
        """Return the fingerprint without some of the items."""
        fewer = Fingerprint.of(records)
        return Fingerprint(self.count - fewer.count, (self.total - fewer.total) % (1 << BITS))


def traces_of(vectors: Floats) -> NDArray[np.float64]:
    """Return the product (N,) of vectors with a direction that is always the same: other vectors have another.

    Example:
        >>> traces = traces_of(np.eye(2, dtype=np.float32))
        >>> len(traces), bool(traces[0] != traces[1])
        (2, True)
    """
    # As engines in float32 keep them.
    return (vectors @ _direction(vectors.shape[1])).astype(np.float32).astype(np.float64)


@lru_cache(maxsize=8)
def _direction(dim: int) -> Floats:
    return np.random.default_rng(dim).standard_normal(dim).astype(np.float32)
