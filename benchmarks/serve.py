"""The service under many clients at once: throughput beside the index itself, errors, waiting times and memory.

python -m benchmarks.serve --out figures
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.common import report
from laplacian_metric.serve import Index
from laplacian_metric.trust import Trust

TITLE = "The service under concurrent clients"
NOTE = (
    "Queries by features, on loopback; the clients are another process on the same machine. 'index' is how many "
    "queries a second the index answers in this process, in batches of 64 and one by one; 'service' is what the "
    "clients got. Waiting times are of single requests, from their first byte to the last of the answer. Memory is the "
    "resident memory of the server after the first quarter of the time and at the end."
)


WIDTH, CLASSES = 128, 100


def clusters(num: int, seed: int) -> tuple[NDArray[np.float32], list[int]]:
    """Return features (N, 128) around one centre for each of 100 classes, and the classes."""
    centres = np.random.default_rng(0).standard_normal((CLASSES, WIDTH))
    codes = np.arange(num) % CLASSES
    rows = centres[codes] + 1.5 * np.random.default_rng(seed + 1).standard_normal((num, WIDTH))
    return rows.astype(np.float32), codes.tolist()


async def _client(
    host: str, port: int, requests: list[bytes], until: float, times: list[tuple[float, float]]
) -> int:
    """Send one request after the other through one connection; return how many were not answered by 200."""
    errors = 0
    reader, writer = await asyncio.open_connection(host, port)
    number = 0
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(requests[number % len(requests)])
        await writer.drain()
        head_of = await reader.readuntil(b"\r\n\r\n")
        length = int(head_of.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        errors += not head_of.startswith(b"HTTP/1.1 200")
        times.append((began, time.perf_counter()))
        number += 1
    writer.close()
    return errors


def resident(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the process {process} has no resident memory")


def loaded(
    address: str, process: int, bodies: list[bytes], *, clients: int, seconds: float, warm_up: float
) -> dict[str, Any]:
    """Return what clients got from a service, and how its memory grew.

    Args:
        address: of the service.
        process: the server's number.
        bodies: of requests to /query/vector, which are sent in turns.
        clients: that send at the same time, each through a connection of its own.
        seconds: that they go on.
        warm_up: seconds after which memory and answers count.
    """
    host, _, port = address.removeprefix("http://").rpartition(":")
    start = (
        f"POST /query/vector HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "
    )
    requests = [f"{start}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    times: list[tuple[float, float]] = []

    async def all_of_them() -> tuple[int, float]:
        begun = time.perf_counter()
        running = [
            asyncio.create_task(_client(host, int(port), requests[i:] + requests[:i], begun + seconds, times))
            for i in range(clients)
        ]
        await asyncio.sleep(warm_up)
        before = resident(process)
        return sum(await asyncio.gather(*running)), before

    begun = time.perf_counter()
    errors, before = asyncio.run(all_of_them())
    after = resident(process)
    counted = [(first, last) for first, last in times if first >= begun + warm_up]
    waited = np.array([last - first for first, last in counted]) * 1e3
    span = max(last for _, last in counted) - (begun + warm_up)
    return {
        "clients": clients,
        "seconds": round(seconds),
        "answers": len(times),
        "errors": errors,
        "service / s": len(counted) / span,
        "median ms": float(np.median(waited)),
        "99 % ms": float(np.quantile(waited, 0.99)),
        "memory MiB": round(before),
        "growth MiB": round(after - before, 1),
    }


def bare(index: Index, queries: NDArray[np.float32], batch: int, seconds: float) -> float:
    """Return how many queries a second an index answers by itself."""
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start = done % len(queries)
        done += len(index.replies(queries[start : start + batch], 5))
    return done / (time.perf_counter() - begun)


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    items: Annotated[int, typer.Option(help="Of the index.")] = 10_000,
    clients: Annotated[int, typer.Option(help="That send at the same time.")] = 50,
    seconds: Annotated[float, typer.Option(help="That they go on.")] = 60.0,
) -> None:
    """Measure the service."""
    queries, _ = clusters(512, 10)
    with tempfile.TemporaryDirectory() as place:
        index = Index(Trust.fit(clusters(items, 0), clusters(300, 11)))
        index.save(place)
        together, alone = bare(index, queries, 64, seconds / 6), bare(index, queries, 1, seconds / 6)
        command = [sys.executable, "-m", "laplacian_metric.cli", "serve", place, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1].rstrip("/")
            bodies = [json.dumps({"vector": row.tolist()}).encode() for row in queries]
            try:
                row = loaded(
                    address, server.pid, bodies, clients=clients, seconds=seconds, warm_up=seconds / 4
                )
            finally:
                server.terminate()
    rows = [
        {
            "items": items,
            "index, 64 / s": together,
            "index, 1 / s": alone,
            **row,
            "service / index": row["service / s"] / together,
        }
    ]
    report(TITLE, rows, out, "benchmark_serve", NOTE)


if __name__ == "__main__":
    typer.run(main)
