"""An index of distributions: items with ids, the neighbours of queries among them, and what was promised for these."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.gallery import (
    Built,
    Flat,
    Gallery,
    Kind,
    Numbers,
    Scan,
    as_kind,
    build,
    faiss,
)
from laplacian_metric.retrieval.items import (
    GivenIds,
    Ids,
    Items,
    Rows,
    as_ids,
    check_alike,
    check_same_kind,
    check_unique,
    is_text,
    row_numbers,
)
from laplacian_metric.retrieval.retriever import Retriever, State

if TYPE_CHECKING:
    from laplacian_metric.trust.trust import Trust


class Index(Retriever):
    """Items of one source, each with an id, that answer queries.

    Changing the items withdraws what was calibrated on them.

    Args:
        items: at least one.
        ids: whole numbers or text, each once; by default 0 to N - 1.
        kind: "flat", exact; "ivf" or "hnsw", faster and approximate; or `IVF(nlist=...)`, `HNSW(links=...)` with
            settings of one's own.

    Example:
        >>> items = Items(np.eye(3), kappa=[10, 20, 30], uncertainty=[0.1, 0.05, 0.03], variance=None, source="a4f0")
        >>> index = Index(items, ["ant", "bee", "cat"])
        >>> index.query(items[1:2], k=1).ids
        array([['bee']], dtype='<U3')
        >>> index.remove(["bee"])
        >>> len(index), index.ids
        (2, array(['ant', 'cat'], dtype='<U3'))
    """

    def __init__(self, items: Items, ids: GivenIds | None = None, *, kind: str | Kind = "flat") -> None:
        if not isinstance(items, Items):
            raise TypeError(f"items is a {type(items).__name__}: make Items of it, by Items.of say")
        named = np.arange(len(items)) if ids is None else as_ids(ids)
        if ids is not None:
            check_unique(named)
        self.kind: Kind = as_kind(kind)
        super().__init__(self._gallery(items, named))

    @classmethod
    def stored(
        cls,
        items: Items,
        ids: Ids,
        kind: Kind,
        built: Any,
        calibrations: Calibrations,
        trust: Trust | None = None,
    ) -> Index:
        """From what was checked before it was stored; ``built`` is FAISS' index where the kind has one."""
        index = cls.__new__(cls)
        index.kind = kind
        searcher = Scan(items.mean) if built is None else Built(built)
        Retriever.__init__(index, Gallery((items,), (ids,), searcher), calibrations)
        index._state = replace(index._state, trust=trust)
        return index

    def _gallery(self, items: Items, ids: Ids) -> Gallery:
        """Everything anew."""
        scanned = Gallery(
            (items,), (ids,), Scan(items.mean)
        )  # which checks that there is an id for each of some items
        built = build(self.kind, items.mean)
        return scanned if built is None else replace(scanned, searcher=Built(built))

    @property
    def items(self) -> Items:
        """All items, in the order of the rows."""
        return self._state.gallery.parts[0]

    @property
    def built(self) -> Any:
        """FAISS' own index; None where there is none, because the kind is flat."""
        return self._state.gallery.built

    def __repr__(self) -> str:
        return (
            f"Index({len(self)} items in {self.dim} dimensions, {self.kind!r}, source {self.source[:12]!r})"
        )

    # --- other items ---

    def add(
        self, items: Items, ids: GivenIds | None = None, *, features: Any = None, labels: Any = None
    ) -> None:
        """Take up more items; many at a time, because all are copied each time.

        Args:
            items: of the same source.
            ids: as many, of none that is there; by default, where ids are numbers, those that follow the greatest.
            features, labels: of the new items, which an index with `Trust` needs; without them it loses its Trust.
        """
        gallery = self._state.gallery
        check_alike(gallery, items, "the index", "what was given")
        if len(items) == 0:
            return
        if ids is None:
            if is_text(gallery.ids):
                raise ValueError("the ids of this index are text: give those of the new items, too")
            ids = int(gallery.ids.max()) + 1 + np.arange(len(items))
        named = as_ids(ids)
        if len(named) != len(items):
            raise ValueError(f"ids has {len(named)} entries for {len(items)} items")
        check_same_kind(gallery.ids, named)
        check_unique(named)
        check_unique(np.concatenate([gallery.ids, named]), " that the index has already")
        trust = None
        if self.trust is not None and features is not None:
            trust = replace(self.trust)
            trust.update(add=(features, labels))
        grown = self._grown(Items.cat([self.items, items]), np.concatenate([gallery.ids, named]))
        self._change(grown, trust)

    def _grown(self, items: Items, ids: Ids) -> Gallery:
        """With further items at the end."""
        built = self.built
        if built is None or isinstance(self.kind, Flat):
            return self._gallery(items, ids)
        # A copy grows: the one that is there may be answering, and another index may have it, too.
        built = faiss().clone_index(built)
        built.add(items.mean[built.ntotal :])
        if self.kind.outgrown(built):
            return self._gallery(items, ids)
        return Gallery((items,), (ids,), Built(built))

    def remove(self, ids: GivenIds) -> None:
        """Take items out; an approximate search is built anew from the others."""
        named = as_ids(ids)
        check_unique(named)
        if len(named):
            keep = self._all_but(self.rows(named))
            self._change(self._gallery(self.items[keep], self.ids[keep]), self._trust_of(keep))

    def without(self, ids: GivenIds | None = None, *, rows: Rows | None = None) -> Index:
        """Another index that lacks some items, by id or by row; this one stays as it is."""
        if (ids is None) == (rows is None):
            raise ValueError("pass either ids or rows of the items to leave out")
        if ids is not None:
            return self._some(self._all_but(self.rows(ids)))
        assert rows is not None
        out = rows if isinstance(rows, slice) else row_numbers(rows, len(self))
        return self._some(self._all_but(out))

    def cleaned(self, share: float = 0.1, *, groups: ArrayLike | None = None) -> Index:
        """Another index without its most uncertain items; this one stays as it is.

        Args:
            share: which part of the items goes, at least 0 and less than 1, rounded down. Of equally uncertain items
                the later ones go.
            groups: (N,), the class of each item, say: the share is then taken out of each, so that none loses more.
        """
        if not 0 <= share < 1:
            raise ValueError(f"share is {share}: a number from 0 up to, but not including, 1 is needed")
        uncertainty = self.items.uncertainty
        group = np.zeros(len(self), dtype=np.int64) if groups is None else np.asarray(groups)
        if group.shape != (len(self),):
            raise ValueError(f"groups has shape {group.shape} for {len(self)} items: one for each is needed")
        _, number, size = np.unique(group, return_inverse=True, return_counts=True)
        order = np.lexsort((np.arange(len(self)), uncertainty, number))
        place = np.arange(len(self)) - np.repeat(np.cumsum(size) - size, size)
        # 0.1 of 30 is 3, whatever the product rounds to.
        stay = size - np.array([math.floor(round(share * n, 9)) for n in size.tolist()], dtype=np.int64)
        return self._some(np.sort(order[place < np.repeat(stay, size)]))

    def calibrated(self, calibrations: Calibrations | None = None, **named: Any) -> Index:
        """The same items with these calibrations in place of all others; this index stays as it is.

        Args:
            calibrations: all at once, or
            given: ``threshold``, ``credible``, ``matching``, ``drift`` by name. To keep what there is, pass
                ``index.calibrations.and_also(threshold=...)``.
        """
        if calibrations is not None and named:
            raise ValueError(f"pass either calibrations or {', '.join(named)}, not both")
        copy = Index.__new__(Index)
        copy.kind = self.kind
        copy._state = self._state
        copy.calibrations = Calibrations(**named) if calibrations is None else calibrations
        return copy

    def _all_but(self, rows: Numbers | slice) -> Numbers:
        keep = np.ones(len(self), dtype=bool)
        keep[rows] = False
        if not keep.any():
            raise ValueError("this would take out all items: an index needs at least one")
        return np.flatnonzero(keep)

    def _some(self, keep: Numbers) -> Index:
        copy = Index.__new__(Index)
        copy.kind = self.kind
        copy._state = self._state
        if len(keep) < len(self):
            copy._change(copy._gallery(self.items[keep], self.ids[keep]), self._trust_of(keep))
        return copy

    def with_trust(self, trust: Trust | None) -> Index:
        """Return the same items with a `Trust`, or without one; what was calibrated before is withdrawn.

        Args:
            trust: whose gallery are the items of this index, row by row. Queries need their features then.
        """
        if trust is not None and len(trust.gallery) != len(self):
            raise ValueError(
                f"the gallery of trust has {len(trust.gallery)} items and the index {len(self)}: make it by "
                "trust.with_gallery(features of the items, their labels)"
            )
        copy = Index.__new__(Index)
        copy.kind = self.kind
        copy._state = State(self._state.gallery, self._state.calibrations.withdraw(), trust)
        return copy

    def _trust_of(self, keep: Numbers) -> Trust | None:
        """Return the Trust of some of the items."""
        if self.trust is None:
            return None
        trust = replace(self.trust)  # others may have this one
        trust.update(remove=np.setdiff1d(np.arange(len(self)), keep))
        return trust

    def _change(self, gallery: Gallery, trust: Trust | None = None) -> None:
        self._state = State(gallery, self._state.calibrations.withdraw(), trust)
