"""Threads, kills, readers beside a writer, and full disks."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder
from laplacian_metric.core import gallery_files
from tests.attack.counting import SECONDS, TRACEBACK, Count
from tests.cli.running import clusters, lam
from tests.manifests import version


def threads(trials: int) -> Count:
    """Four threads embed with a network in training mode: kappas, weights and modes are as in one thread."""
    count = Count("threads embedding a network in training mode")
    layers = [nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5)]
    encoder = Encoder(nn.Sequential(*layers), nn.Linear(5, 3)).eval()
    x = torch.randn(64, 6)
    posterior = LAM(encoder, ContrastiveLoss()).fit([(x, torch.arange(64) % 4)], check_mode=False)
    expected = posterior.embed(x).kappa
    encoder.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for trial in range(trials):
            kappas: list[torch.Tensor] = []
            errors: list[BaseException] = []

            def work(kappas: list[torch.Tensor] = kappas, errors: list[BaseException] = errors) -> None:
                try:
                    kappas.extend(posterior.embed(x).kappa for _ in range(10))
                except BaseException as error:
                    errors.append(error)

            running = [threading.Thread(target=work) for _ in range(4)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join(SECONDS)
            same = len(kappas) == 40 and all(torch.equal(kappa, expected) for kappa in kappas)
            kept = all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
            modes = all(part.training for part in encoder.modules())
            end = "same" if same and kept and modes and not errors else f"{errors or (same, kept, modes)}"
            count.add(f"trial {trial}", end, end == "same")
    finally:
        sys.setswitchinterval(interval)
    return count


WRITER = """
import sys
from pathlib import Path
import numpy as np
from laplacian_metric.core import gallery_files
from laplacian_metric.core.array_gallery import ArrayGallery
target = Path(sys.argv[1])
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    rows = 200 + number % 7
    vectors = rows * np.eye(4, dtype=np.float32)[np.arange(rows) % 4]
    gallery = ArrayGallery(vectors, np.full(rows, rows), np.arange(rows) + rows)
    gallery_files.save(gallery, target, overwrite=True)
print("done", flush=True)
"""


def writer(target: Path, writes: int) -> subprocess.Popen[str]:
    """A process that writes a gallery again and again, every time with another number of rows."""
    command = [sys.executable, "-c", WRITER, str(target), str(writes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process


def check_gallery(target: Path) -> str:
    """Load a gallery; "whole" if all of its files are of one version."""
    try:
        items = gallery_files.load(target).items
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    rows = len(items.ids)
    numbers = {rows, round(float(items.norms[-1])), int(items.ids[0]), int(items.labels[0])}
    return "whole" if numbers == {rows} else f"a mixture of {numbers}"


def kills(trials: int) -> Count:
    """A writer is killed at a random moment: what is there is whole, and the next write leaves nothing else."""
    count = Count("killed writers of a gallery")
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "gallery"
        first = writer(target, 1)
        first.wait(SECONDS)
        for trial in range(trials):
            process = writer(target, 10_000)
            time.sleep(generator.uniform(0.0, 0.3))
            process.kill()
            process.wait()
            count.add(f"kill {trial}", end := check_gallery(target), end == "whole")
        last = writer(target, 1)
        last.wait(SECONDS)
        left = [path.name for path in target.iterdir() if path not in (version(target), target / ".lock")]
        count.add("left over after the next write", f"{left}", left == ["CURRENT"])
    return count


def readers(loads: int) -> Count:
    """A gallery is loaded while a process rewrites it: every load gives one version."""
    count = Count("loads beside a writer")
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "gallery"
        writer(target, 1).wait(SECONDS)
        process = writer(target, 1_000_000)
        try:
            for load in range(loads):
                count.add(f"load {load}", end := check_gallery(target), end == "whole")
        finally:
            process.kill()
            process.wait()
    return count


def disk_full(limits: Sequence[int] = (0, 600, 3000)) -> Count:
    """Commands that write, in processes whose files may not grow: refused, no traceback, and nothing half done."""
    count = Count("commands on a full disk")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        features, labels = clusters(400)
        np.savez(place / "features.npz", features=features, labels=labels)
        done = lam(
            "fit", "--features", place / "features.npz", "--dim", 4, "--steps", 5, "--out", place / "m"
        )
        assert done.code == 0, done.err
        commands: dict[str, list[object]] = {
            "fit": ["fit", "--features", place / "features.npz", "--dim", 4, "--steps", 5],
            "embed npz": ["embed", place / "m", place / "features.npz"],
            "embed safetensors": ["embed", place / "m", place / "features.npz"],
        }
        for what, command in commands.items():
            out = place / f"out{'.' + what.split()[1] if ' ' in what else ''}"
            for limit in limits:
                before = sorted(path.name for path in place.iterdir())
                code, said = limited([*map(str, command), "--out", str(out)], limit)
                after = sorted(path.name for path in place.iterdir())
                good = code == 1 and not any(text in said for text in TRACEBACK) and before == after
                count.add(f"{what} with {limit} bytes", "refused" if good else f"{code} {said[-300:]}", good)
    return count


def limited(arguments: list[str], size: int) -> tuple[int, str]:
    """Call a command in a process whose files may have so many bytes; its exit code and what it said."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        [sys.executable, "-B", "-m", "laplacian_metric.cli", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,
        preexec_fn=limit,
    )
    return done.returncode, done.stderr
