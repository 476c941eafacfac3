"""What the benchmarks share: interleaved timing, peak memory, the description of the machine, and result files."""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from laplacian_metric.core.files import atomic_write

Row = Mapping[str, Any]


def median_seconds(
    runs: Mapping[str, Callable[[], object]],
    repeats: int = 7,
    warm_up: int = 1,
    budget: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median duration of each callable.

    The callables take turns, so that whatever else the machine does at the time falls on all of them alike: ratios
    of the results can be trusted where the durations themselves cannot. After ``budget`` seconds no further round
    is begun (at least one is run). ``clock`` may be `time.process_time`, the processor's time of this process, which
    other processes do not lengthen.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    begun = time.perf_counter()
    for turn in range(warm_up + repeats):
        if turn > warm_up and time.perf_counter() - begun > budget:
            break
        for name, run in runs.items():
            _synchronize()
            start = clock()
            run()
            _synchronize()
            if turn >= warm_up:
                seconds[name].append(clock() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_extra_memory(run: Callable[[], object]) -> int | None:
    """Bytes by which the peak of the process's resident memory rises while ``run`` runs; None where Linux's /proc
    is missing.

    The kernel's own high-water mark is reset first and read afterwards, so that nothing is missed between two
    samples. Memory that was freed but not returned is given back to the system first, otherwise it would be used
    again and not be counted.
    """
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    reset.write_text("5", encoding="ascii")
    before = _status_bytes("VmRSS")
    run()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no field {field}")


def environment() -> dict[str, Any]:
    """What the numbers depend on: processor count, threads and versions. Nothing that names the machine."""
    from experiments.harness.provenance import machine  # late: what is measured must not be loaded before

    return machine()


def origin() -> dict[str, str]:
    """Return the command that is running, without its folders, and the commit of the sources."""
    from experiments.harness import provenance

    return {"command": provenance.command(), "commit": provenance.commit()}


def mebibytes(size: int | None) -> float | None:
    """A number of bytes in MiB, one decimal."""
    return None if size is None else round(size / 2**20, 1)


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the rows as a table; the keys of the first row are the columns."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)


def report(title: str, rows: Sequence[Row], out: Path | None, name: str, note: str = "") -> None:
    """Print the rows as a table and, where there is a folder ``out``, write them there; see `save`."""
    show(title, rows)
    if out is not None:
        for path in save(out, name, title, rows, note):
            Console().print(f"written: {path}")


def save(out: Path, name: str, title: str, rows: Sequence[Row], note: str = "") -> list[Path]:
    """Write the rows as ``name.json`` (with the environment) and ``name.md`` into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    provenance = origin()
    record = {"title": title, **provenance, "environment": environment(), "rows": [dict(row) for row in rows]}
    header = list(rows[0])
    described = ", ".join(f"{key} {value}" for key, value in environment().items() if value is not None)
    lines = [
        f"# {title}",
        "",
        *([note, ""] if note else []),
        f"Made by `{provenance['command']}` at commit {provenance['commit']}, measured with {described}.",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "|".join(" --- " for _ in header) + "|",
        *("| " + " | ".join(_cell(row[key]) for key in header) + " |" for row in rows),
        "",
    ]
    written = [out / f"{name}.json", out / f"{name}.md"]
    write_text(written[0], json.dumps(record, indent=2) + "\n")
    write_text(written[1], "\n".join(lines))
    return written


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
