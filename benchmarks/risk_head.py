"""Rows that a risk head is trained on in a second of one processor, from memory and from a mapped file, and its memory.

    python -m benchmarks.risk_head --out figures

Memory is anonymous: pages of the mapped file, which the system takes back when it needs them, are not counted.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.common import mebibytes, report
from laplacian_metric.methods.risk import RiskHead, RiskOptions, fit_head

WIDTH = 1280  # of EfficientNet-Lite0
TITLE = "Training a risk head on cached features"
NOTE = (
    "One epoch of random features (float16, 1280 wide) with batches of 256, one thread: rows in a second of processor "
    "time, and anonymous memory beyond that before. With mapped features it does not grow with the rows."
)


def anonymous() -> int:
    """Return the anonymous memory of the process in bytes, 0 where Linux's /proc is missing."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


@contextmanager
def peak(peaks: list[int]) -> Iterator[None]:
    """Append by how much anonymous memory rises at most inside."""
    before, done, highest = anonymous(), threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.02):
            highest[0] = max(highest[0], anonymous() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks.append(highest[0])


def features(rows: int, path: Path | None) -> Tensor:
    """Return random features (N, 1280), in memory or mapped from a file."""
    generator = np.random.default_rng(0)
    if path is None:
        return torch.from_numpy(generator.standard_normal((rows, WIDTH), dtype=np.float32).astype(np.float16))
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(rows, WIDTH))
    for start in range(0, rows, 4096):
        block = mapped[start : start + 4096]
        block[:] = generator.standard_normal(block.shape, dtype=np.float32)
    mapped.flush()
    return torch.as_tensor(np.load(path, mmap_mode="c"))


def measure(rows: int, hidden: int, place: Path | None) -> dict[str, Any]:
    """Return a row of the table."""
    x = features(rows, None if place is None else place / f"{rows}.npy")
    generator = torch.Generator().manual_seed(0)
    target, validation = torch.rand(rows, generator=generator), torch.randn(500, WIDTH, generator=generator)
    wrong = torch.arange(500) % 2 == 0

    def train(count: int) -> Callable[[], object]:
        head = RiskHead(WIDTH, hidden=hidden, generator=generator)
        return lambda: fit_head(
            head, [x[:count]], target[:count], (validation, wrong.float(), wrong), RiskOptions(epochs=1)
        )

    train(2000)()
    peaks: list[int] = []
    run = train(rows)
    with peak(peaks):
        begun = time.process_time()
        run()
        seconds = time.process_time() - begun
    return {
        "features": "in memory" if place is None else "mapped",
        "rows": rows,
        "hidden": hidden,
        "rows a second": round(rows / seconds),
        "memory (MiB)": mebibytes(peaks[0]),
    }


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    sizes: Annotated[str, typer.Option(help="Numbers of rows.")] = "20000,80000",
) -> None:
    """Measure every combination."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(count, hidden, place)
            for place in (None, Path(folder))
            for count in map(int, sizes.split(","))
            for hidden in (256, 512)
        ]
    report(TITLE, rows, out, "benchmark_risk_head", NOTE)


if __name__ == "__main__":
    typer.run(main)
