"""What the service does, without HTTP: the folder that it answers from, batches of queries, and reloading."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core import artifact
from laplacian_metric.core.check import check, norms_of
from laplacian_metric.serve.index import Index, Reply
from laplacian_metric.serve.queries import Inputs, QueryError

LOGGER = logging.getLogger(__name__)

Waiting = tuple[NDArray[Any], int, "asyncio.Future[Reply]"]  # features, number of neighbours, the reply


class UnavailableError(RuntimeError):
    """A query that would be answered if it were sent again later."""


@dataclass(frozen=True)
class Limits:
    """What the service takes.

    Attributes:
        body: bytes of a request.
        seconds: that a request may take.
        items: that a query may return; at most 50, the neighbours that `Trust` looks at.
        waiting: queries that may wait; others are refused until there are fewer.
        together: queries that are answered in one search.
        text: characters of a text.
    """

    body: int = 10 << 20
    seconds: float = 30.0
    items: int = 50
    waiting: int = 1000
    together: int = 64
    text: int = 10_000


class Service:
    """Answers queries from a saved index, which may be replaced while it runs.

    Queries that arrive while a search runs are answered together by the next one.

    Args:
        folder: of an index.
        inputs: what makes features of images and texts; by default queries are vectors.
        limits: what the service takes.
        address: of the index's gallery, with credentials; by default the saved one.

    Example:
        >>> import tempfile
        >>> from laplacian_metric.trust import Trust
        >>> labels = np.arange(400) % 4
        >>> h = np.eye(4)[labels] + 0.4 * np.random.default_rng(0).standard_normal((400, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Index(Trust.fit((h[:200], labels[:200]), (h[200:], labels[200:]))).save(folder)
        ...     service = Service(folder)
        ...     reply = asyncio.run(service.ask(service.row([0.0, 2.0, 0.0, 0.1])))
        >>> reply.label
        1
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        inputs: Inputs | None = None,
        limits: Limits | None = None,
        address: str | None = None,
    ) -> None:
        self.folder, self.address = Path(folder), address
        self.inputs = Inputs() if inputs is None else inputs
        self.limits = Limits() if limits is None else limits
        self.answered = 0
        self.problem: str | None = None  # why the folder could not be read again
        self._loading = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._running = False
        self.number = 0  # how often the folder was read
        self.reload()

    # --- the folder ---

    def _stamp(self) -> tuple[int, ...]:
        status = (self.folder / artifact.POINTER).stat()
        return status.st_mtime_ns, status.st_ino, status.st_size

    def reload(self) -> int:
        """Read the folder again and return how often it was read; queries that run keep the previous index."""
        with self._loading:
            try:
                stamp = self._stamp()  # before it is read, so that a later change is noticed
                index = Index.load(self.folder, self.address)
                self.inputs.check(index)
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                raise
            self.index, self.stamp, self.problem = index, stamp, None
            self.number += 1
            return self.number

    def reload_if_changed(self) -> None:
        """Read the folder again if its pointer is another; a folder that cannot be read is logged, and not used."""
        try:
            if self._stamp() != self.stamp:
                self.reload()
        except FileNotFoundError:
            return  # it is being replaced
        except Exception:
            LOGGER.exception(
                "%s cannot be read again: queries are answered from the previous index", self.folder
            )

    async def watch(self, seconds: float) -> None:
        """Look at the pointer every so often, and read the folder again when it is another."""
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.reload_if_changed)

    # --- queries ---

    def row(self, vector: Sequence[float]) -> NDArray[Any]:
        """Return the features (H,) of a query that is a vector."""
        try:
            rows = check("vector", [vector], "Q H", H=self.index.dim)
            norms_of("vector", rows)
        except (ValueError, TypeError) as error:
            raise QueryError(str(error)) from error
        row: NDArray[Any] = rows[0]
        return row

    async def ask(self, row: NDArray[Any], k: int = 5) -> Reply:
        """Return the reply to a query of features (H,), with at most k of the nearest items.

        Raises:
            UnavailableError: too many others are waiting, or the index was replaced by one of other features.
            TimeoutError: it took longer than the limit.
        """
        if not 1 <= k <= self.limits.items:
            raise QueryError(f"k is {k}: 1 to {self.limits.items} items are returned")
        if len(self._waiting) >= self.limits.waiting:
            raise UnavailableError(f"{len(self._waiting)} queries are waiting: ask again later")
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, k, reply))
        if not self._running:
            self._running = True
            self._task = asyncio.create_task(self._run())
        return await asyncio.wait_for(reply, self.limits.seconds)

    async def _run(self) -> None:
        """Answer in one search after the other until nobody waits; those that were given up are dropped."""
        try:
            while self._waiting:
                count = min(len(self._waiting), self.limits.together)
                batch = [self._waiting.popleft() for _ in range(count)]
                batch = [entry for entry in batch if not entry[2].done()]
                if not batch:
                    continue
                most = max(k for _, k, _ in batch)
                results = await asyncio.to_thread(self._replies, [row for row, _, _ in batch], most)
                for (_, k, future), result in zip(batch, results, strict=True):
                    _settle(future, k, result)
                self.answered += len(batch)
        finally:
            self._running = False

    def _replies(self, rows: list[NDArray[Any]], k: int) -> list[Reply | Exception]:
        """Return the reply to each query, or the error that it raises."""
        index = self.index
        try:
            if any(len(row) != index.dim for row in rows):
                raise UnavailableError("the index was replaced by one of another model: ask again")
            return list(index.replies(np.stack(rows), k))
        except Exception as error:
            if len(rows) == 1:
                return [QueryError(str(error)) if isinstance(error, ValueError) else error]
            return [self._replies([row], k)[0] for row in rows]


def _settle(future: asyncio.Future[Reply], k: int, result: Reply | Exception) -> None:
    """Give a waiting query its reply with k neighbours, or its error."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result.model_copy(update={"neighbours": result.neighbours[:k]}))
