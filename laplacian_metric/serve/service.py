"""What the service does, without HTTP: the folder that it answers from, batches of queries, and reloading."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laplacian_metric.core import artifact
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.replies import Reply, query_embedded
from laplacian_metric.retrieval.storage import open_saved
from laplacian_metric.serve.queries import Embedded, Inputs, QueryError, as_query

if TYPE_CHECKING:
    from laplacian_metric.retrieval.engines.collection import Collection
    from laplacian_metric.retrieval.index import Index

LOGGER = logging.getLogger(__name__)


class OverloadedError(RuntimeError):
    """More queries are waiting than the service keeps."""


@dataclass(frozen=True)
class Limits:
    """What the service takes.

    Attributes:
        body: bytes of a request.
        seconds: that a request may take.
        items: that a query may return.
        waiting: queries that may wait; others are refused until there are fewer.
        together: queries that are answered in one search.
        text: characters of a text.
    """

    body: int = 10 << 20
    seconds: float = 30.0
    items: int = 100
    waiting: int = 1000
    together: int = 64
    text: int = 10_000


@dataclass(frozen=True)
class Options:
    """How a query is to be answered; queries with the same options are searched for together."""

    k: int = 5
    order: Any = "cosine"
    answer_all: bool = False
    where: str | None = None  # JSON, which can be compared


@dataclass(frozen=True, eq=False)
class Loaded:
    """What queries are answered from, and the state of its manifest when it was read."""

    retriever: Index | Collection
    stamp: tuple[int, ...]
    number: int


class Service:
    """Answers queries from a saved index or collection, which may be replaced while it runs.

    Queries that arrive while a search runs are answered together by the next one.

    Args:
        folder: of an index or of a collection.
        inputs: what makes features of images and texts; without it queries are vectors.
        limits: what the service takes.

    Example:
        >>> import tempfile
        >>> from laplacian_metric.retrieval import Index, save
        >>> items = Items(np.eye(2), kappa=[10, 20], uncertainty=[0.1, 0.05], variance=None, source="a4f0")
        >>> with tempfile.TemporaryDirectory() as place:
        ...     save(Index(items, ["ant", "bee"]), place + "/index")
        ...     service = Service(place + "/index")
        ...     reply = asyncio.run(service.ask(service.of_vector({"embedding": [0.0, 2.0]}), Options(k=1)))
        >>> reply.matches[0].item
        'bee'
    """

    def __init__(
        self, folder: str | os.PathLike[str], inputs: Inputs | None = None, limits: Limits | None = None
    ) -> None:
        self.folder = Path(folder)
        self.inputs = inputs
        self.limits = Limits() if limits is None else limits
        self.answered = 0
        self.problem: str | None = None  # why the folder could not be read again
        self._loading = threading.Lock()
        self._waiting: deque[tuple[Embedded, Options, asyncio.Future[Reply]]] = deque()
        self._running = False
        self._loaded = self._load(1)

    # --- the folder ---

    @property
    def retriever(self) -> Index | Collection:
        """What queries are answered from now."""
        return self._loaded.retriever

    @property
    def number(self) -> int:
        """How often the folder was read."""
        return self._loaded.number

    def _stamp(self) -> tuple[int, ...]:
        status = (self.folder / artifact.POINTER).stat()
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _load(self, number: int) -> Loaded:
        stamp = self._stamp()  # before it is read, so that a later change is noticed
        retriever = open_saved(self.folder)
        if self.inputs is not None:
            self.inputs.check(retriever)
        return Loaded(retriever, stamp, number)

    def reload(self) -> int:
        """Read the folder again; queries that run are answered from what was there before. Returns how often it was."""
        with self._loading:
            try:
                self._loaded = self._load(self._loaded.number + 1)
                self.problem = None
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                raise
            return self._loaded.number

    def reload_if_changed(self) -> bool:
        """Read the folder again if its manifest is another; a folder that cannot be read is logged, and not used."""
        try:
            stamp = self._stamp()
        except OSError:
            return False  # it is being replaced
        if stamp == self._loaded.stamp:
            return False
        try:
            self.reload()
        except Exception:
            LOGGER.exception(
                "%s cannot be read again: queries are answered from what was there before", self.folder
            )
            return False
        return True

    # --- queries ---

    def of_vector(self, content: dict[str, Any]) -> Embedded:
        """Return a query of an embedding or of features."""
        return as_query(self.retriever, **content)

    async def ask(self, query: Embedded, options: Options) -> Reply:
        """Return the reply to a query.

        Raises:
            OverloadedError: too many others are waiting.
            TimeoutError: it took longer than the limit.
        """
        if len(self._waiting) >= self.limits.waiting:
            raise OverloadedError(f"{len(self._waiting)} queries are waiting: ask again later")
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, options, reply))
        if not self._running:
            self._running = True
            self._task = asyncio.create_task(self._run())
        return await asyncio.wait_for(reply, self.limits.seconds)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                if batch:
                    await asyncio.to_thread(self._answer, batch, asyncio.get_running_loop())
        finally:
            self._running = False

    def _next_batch(self) -> list[tuple[Embedded, Options, asyncio.Future[Reply]]]:
        """Take the oldest query, and others with the same options; those that were given up are dropped."""
        batch: list[tuple[Embedded, Options, asyncio.Future[Reply]]] = []
        others: deque[tuple[Embedded, Options, asyncio.Future[Reply]]] = deque()
        while self._waiting and len(batch) < self.limits.together:
            entry = self._waiting.popleft()
            if entry[2].done():
                continue
            if not batch or (entry[1] == batch[0][1] and entry[0].kind == batch[0][0].kind):
                batch.append(entry)
            else:
                others.append(entry)
        self._waiting.extendleft(reversed(others))
        return batch

    def _answer(
        self, batch: list[tuple[Embedded, Options, asyncio.Future[Reply]]], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Answer queries in one search, in a thread of its own; what goes wrong becomes the answer of each."""

        def settle(future: asyncio.Future[Reply], result: Any) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        try:
            replies: list[Any] = self._replies([entry[0] for entry in batch], batch[0][1])
        except Exception as error:
            replies = [error] * len(batch)
        for (_, _, future), reply in zip(batch, replies, strict=True):
            loop.call_soon_threadsafe(settle, future, reply)
        self.answered += len(batch)

    def _replies(self, queries: list[Embedded], options: Options) -> list[Reply]:
        retriever = self.retriever
        for query in queries:
            if query.items.source != retriever.source or query.items.dim != retriever.dim:
                raise QueryError("the index was replaced by one of another model: ask again")
        items = queries[0].items if len(queries) == 1 else Items.cat([query.items for query in queries])
        features = None
        if queries[0].features is not None:
            features = np.concatenate([query.features for query in queries if query.features is not None])
        more = {} if options.where is None else {"where": json.loads(options.where)}
        replies = query_embedded(
            retriever,
            items,
            [""] * len(queries),
            min(options.k, len(retriever)),
            order=options.order,
            answer_all=options.answer_all,
            features=features,
            **more,
        )
        if queries[0].known_kappa:
            return replies
        # Without a kappa of the query nothing is known about the probability of a match.
        return [
            replace(reply, matches=tuple(replace(match, probability=None) for match in reply.matches))
            for reply in replies
        ]

    async def watch(self, seconds: float) -> None:
        """Look at the manifest every so often, and read the folder again when it is another."""
        while True:
            await asyncio.sleep(seconds)
            began = time.perf_counter()
            if await asyncio.to_thread(self.reload_if_changed):
                LOGGER.info("%s was read again in %.1f s", self.folder, time.perf_counter() - began)
