"""Hostile inputs, kills, threads, full disks and readers beside writers, counted: x of y behaved.

`python -m tests.attack.attack` runs all of it at full size and prints a line for each; `test_attack.py` runs the same
at a reduced size and demands that every count is complete.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, retrieval
from laplacian_metric.core.manifest import digest_of_dict
from laplacian_metric.laplace.model_folder import ModelFolder
from tests.cli.running import clusters, lam

FORMATS = Path(__file__).parents[1] / "fixtures" / "formats"
FLAT = FORMATS / "index" / "flat"
SECONDS = 300  # after which an input counts as hanging
TRACEBACK = ("Traceback (most recent call last)", "unexpected ")


@dataclass
class Count:
    """How many trials there were, how many behaved, and what the others did."""

    name: str
    trials: int = 0
    good: int = 0
    wrong: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, end: str, good: bool) -> None:
        """Note how a trial ended."""
        self.trials += 1
        self.good += good
        self.ends[end] += 1
        if not good:
            self.wrong.append(f"{what}: {end}")

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()) if len(end) < 40)
        return "\n  ".join([f"{self.name}: {self.good} of {self.trials} ({ends})", *self.wrong[:20]])


class TimeUp(BaseException):
    """Nothing came in time. It is no OSError, as TimeoutError is, so that no command takes it for a file's fault."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeUp in the main thread after some seconds."""

    def stop(*_: object) -> None:
        raise TimeUp(f"nothing came for {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- threads ---


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


# --- kills, and readers beside a writer ---

WRITER = """
import sys
from pathlib import Path
import numpy as np
from laplacian_metric.retrieval import Index, Items, storage
target = Path(sys.argv[1])
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    rows = 200 + number % 7
    mean = np.tile(np.eye(4, dtype=np.float32), (60, 1))[:rows]
    items = Items(mean, np.full(rows, rows, np.float32), np.full(rows, float(rows)), None, source="a4f0")
    storage.save(Index(items, np.arange(rows) + rows), target, overwrite=target.exists())
print("done", flush=True)
"""


def writer(target: Path, writes: int) -> subprocess.Popen[str]:
    """A process that writes an index again and again, every time with another number of rows."""
    command = [sys.executable, "-c", WRITER, str(target), str(writes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process


def check_index(target: Path) -> str:
    """Load an index; "whole" if all of its files are of one version."""
    try:
        index = retrieval.load(target)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    rows = len(index)
    numbers = {rows, int(index.items.kappa[0]), int(index.items.uncertainty[-1]), int(index.ids[0])}
    return "whole" if numbers == {rows} else f"a mixture of {numbers}"


def kills(trials: int) -> Count:
    """A writer is killed at a random moment: what is there is whole, and the next write leaves nothing else."""
    count = Count("killed writers of an index")
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "index"
        first = writer(target, 1)
        first.wait(SECONDS)
        for trial in range(trials):
            process = writer(target, 10_000)
            time.sleep(generator.uniform(0.0, 0.3))
            process.kill()
            process.wait()
            count.add(f"kill {trial}", end := check_index(target), end == "whole")
        last = writer(target, 1)
        last.wait(SECONDS)
        left = sorted(path.name for path in Path(place).iterdir())
        visible = [name for name in left if not name.endswith((".lock", "index"))]
        count.add("left over after the next write", "nothing" if not visible else f"{visible}", not visible)
    return count


def readers(loads: int) -> Count:
    """An index is loaded while a process rewrites it: every load gives one version."""
    count = Count("loads beside a writer")
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "index"
        writer(target, 1).wait(SECONDS)
        process = writer(target, 1_000_000)
        try:
            for load in range(loads):
                count.add(f"load {load}", end := check_index(target), end == "whole")
        finally:
            process.kill()
            process.wait()
    return count


# --- a full disk ---


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
            "index": ["index", place / "m", place / "features.npz"],
            "embed npz": ["embed", place / "m", place / "features.npz"],
            "embed safetensors": ["embed", place / "m", place / "features.npz"],
            "embed parquet": ["embed", place / "m", place / "features.npz"],
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


# --- malformed inputs ---


def malformed(per_file: int) -> Count:
    """Damaged and hostile files handed to the commands: refused in a line or two, or read for what they are."""
    count = Count("malformed inputs")
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for what, arguments in _attacks(place, per_file, generator):
            count.add(what, *_outcome(arguments))
    return count


def _outcome(arguments: list[object]) -> tuple[str, bool]:
    try:
        with time_limit(SECONDS):
            done = lam(*arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300], False
    if any(text in done.err for text in TRACEBACK):
        return done.err.strip()[-300:], False
    if done.code == 0:
        return "read", True
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    good = done.code in (1, 2) and (len(lines) == 1 or done.code == 2)
    return "refused" if good else f"{done.code} {done.err[-300:]}", good


def _attacks(
    place: Path, per_file: int, generator: np.random.Generator
) -> Iterator[tuple[str, list[object]]]:
    rows = np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)
    np.savez(place / "features.npz", features=rows, labels=np.arange(20) % 4)
    model = shutil.copytree(FORMATS / "models" / "features", place / "model")
    # Bytes changed, cut off and added, in every kind of file.
    for source in ("embeddings.npz", "embeddings.safetensors", "embeddings.parquet"):
        for number in range(per_file):
            path = place / f"damaged-{number}{Path(source).suffix}"
            path.write_bytes(_damaged((FORMATS / source).read_bytes(), generator))
            yield f"{source} {number}", ["query", FLAT, "--array", path]
    for number in range(per_file):
        path = place / f"features-{number}.npz"
        path.write_bytes(_damaged((place / "features.npz").read_bytes(), generator))
        yield f"features {number}", ["embed", model, path, "--out", place / "e.npz", "--force"]
    for folder, command in (("index/flat", "query"), ("models/features", "embed"), ("index/hnsw", "query")):
        files = sorted(path.name for path in (FORMATS / folder).iterdir())
        for number in range(per_file):
            copy = Path(shutil.copytree(FORMATS / folder, place / f"{command}-{number}", dirs_exist_ok=True))
            path = copy / files[number % len(files)]
            path.write_bytes(_damaged(path.read_bytes(), generator))
            rest: list[object] = ["--id", "bild-0 ü" if folder == "index/flat" else "0"]
            if command == "embed":
                rest = [place / "features.npz", "--out", place / "e.npz", "--force"]
            yield f"{folder}/{path.name} {number}", [command, copy, *rest]
            shutil.rmtree(copy)
    # Manifests whose digest is right and whose entries are not.
    for folder, manifest in (("index/flat", "manifest.json"), ("models/features", "model.json")):
        whole = json.loads((FORMATS / folder / manifest).read_text(encoding="utf-8"))
        whole.pop("digest")
        for key in whole:
            for value in (None, [], {}, "x", -1, 1e300, {"x": {"y": 1}}, ...):
                copy = Path(shutil.copytree(FORMATS / folder, place / "altered", dirs_exist_ok=True))
                altered = {name: entry for name, entry in whole.items() if name != key}
                if value is not ...:
                    altered[key] = value
                altered["digest"] = digest_of_dict(altered)
                (copy / manifest).write_text(json.dumps(altered), encoding="utf-8")
                rest = [place / "features.npz", "--out", place / "e.npz", "--force"]
                command = (
                    ["embed", copy, *rest]
                    if manifest == "model.json"
                    else ["query", copy, "--id", "bild-0 ü"]
                )
                yield f"{manifest}: {key} = {value!r}", command
    # Notes of embedding files, configurations, feature caches.
    from safetensors.numpy import load_file, save_file

    arrays = load_file(FORMATS / "embeddings.safetensors")
    for number, note in enumerate(("[]", "1", "null", "{", "", '{"ids": 1}', '{"ids": [], "source": []}')):
        save_file(arrays, place / f"note-{number}.safetensors", metadata={"laplacian_metric.embedding": note})
        yield f"note {note}", ["query", FLAT, "--array", place / f"note-{number}.safetensors"]
    (place / "renamed.parquet").write_bytes(
        (FORMATS / "embeddings.parquet").read_bytes().replace(b"mean", b"meen")
    )
    yield "a column with another name", ["query", FLAT, "--array", place / "renamed.parquet"]
    torch.save({"mean": torch.eye(3)}, place / "pickled.safetensors")
    yield "torch.save named .safetensors", ["query", FLAT, "--array", place / "pickled.safetensors"]
    yield "the same as features", ["embed", model, place / "pickled.safetensors", "--out", place / "x.npz"]
    for number, text in enumerate(
        (
            "data: 5",
            "method:",
            "[]",
            "5",
            "",
            "data: {train: 5}",
            "network: []",
            "training: {epochs: x}",
            "a: &a [*a]",
            "{",
        )
    ):
        path = place / f"cell-{number}.yaml"
        path.write_text(text, encoding="utf-8")
        yield f"configuration {text!r}", ["train", "--config", path, "--out", place / f"trained-{number}"]
    photos = place / "photos"
    for label in ("a", "b"):
        (photos / label).mkdir(parents=True)
        for number in range(4):
            _image(photos / label / f"{number}.png", generator)
    for number, text in enumerate(
        ("{}", "[]", "1", '{"rows": 3, "width": 5, "dtype": "float16", "fingerprint": ""}')
    ):
        cache = place / f"cache-{number}"
        lam(*_fit(place, photos, cache, 50 + number))
        notes = [*cache.rglob("*.json")]
        assert notes, "the fit keeps its features"
        for path in notes:
            path.write_text(text, encoding="utf-8")
        yield f"feature cache {text}", _fit(place, photos, cache, number)
    # What is no file, and names that control a terminal.
    os.mkfifo(photos / "a" / "pipe.png")
    (photos / "a" / "device.png").symlink_to("/dev/zero")
    yield "a pipe and a device among images", _fit(place, photos, None, 90)
    (photos / "a" / "pipe.png").unlink()
    (photos / "a" / "device.png").unlink()
    (photos / "a" / "\x1b[2J\x1b]0;x\x07.png").write_bytes(b"no image")
    yield "escapes in a file name", _fit(place, photos, None, 91)
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 6000), }"
    (place / "large.npy").write_bytes(header.ljust(127) + b"\n")
    yield "an announced array of 23 GiB", ["embed", model, place / "large.npy", "--out", place / "x.npz"]
    for out in ("", place, "/proc/x.npz", place / "none" / "x.npz"):
        yield f"--out {out!s:.20}", ["embed", model, place / "features.npz", "--out", out]
    for k in (-1, 0, 10**9, "x"):
        yield f"-k {k}", ["query", FLAT, "--array", FORMATS / "embeddings.npz", "-k", k]
    for samples in (-1, 0, "x"):
        yield f"--samples {samples}", ["evaluate", model, place / "features.npz", "--samples", samples]


def _fit(place: Path, photos: Path, cache: Path | None, number: int) -> list[object]:
    weights = place / "n-digit.safetensors"
    if not weights.exists():
        shutil.copy(FORMATS / "n-digit.safetensors", weights)
    arguments: list[object] = ["fit", "--encoder", "n-digit", "--weights", weights, "--data", photos]
    arguments += ["--encoder-option", "digits=1", "--encoder-option", "channels=[2,3]", "--no-confidence"]
    arguments += ["--image-size", 28, "--out", place / f"fitted-{number}"]
    return arguments if cache is None else [*arguments, "--cache", cache]


def _image(path: Path, generator: np.random.Generator) -> None:
    from PIL import Image

    Image.fromarray(generator.integers(0, 256, (28, 28), dtype=np.uint8)).save(path)


def _damaged(content: bytes, generator: np.random.Generator, kinds: Sequence[int] = range(5)) -> bytes:
    """Some bytes changed, cut off, doubled or put in between."""
    changed = bytearray(content)
    kind = int(generator.choice(list(kinds)))
    place = int(generator.integers(max(1, len(changed))))
    if kind == 0:
        for _ in range(int(generator.integers(1, 8))):
            changed[int(generator.integers(len(changed)))] = int(generator.integers(256))
    elif kind == 1:
        del changed[place:]
    elif kind == 2:
        changed[place:place] = generator.bytes(int(generator.integers(1, 64)))
    elif kind == 3:
        changed = bytearray(generator.bytes(len(changed)))
    else:  # the beginning, where headers are
        for _ in range(3):
            changed[int(generator.integers(min(64, len(changed))))] = int(generator.integers(256))
    return bytes(changed)


def models(trials: int) -> Count:
    """Byte flips in a model folder: refused by name, or of a byte that nobody reads."""
    count = Count("damaged model folders")
    generator = np.random.default_rng(1)
    expected = ModelFolder.load(FORMATS / "models" / "features")
    x = torch.eye(5)
    with tempfile.TemporaryDirectory() as place:
        for trial in range(trials):
            copy = Path(shutil.copytree(FORMATS / "models" / "features", Path(place) / f"m{trial}"))
            path = sorted(copy.iterdir())[trial % 4]
            path.write_bytes(_damaged(path.read_bytes(), generator))
            try:
                same = torch.equal(ModelFolder.load(copy).lam.embed(x).kappa, expected.lam.embed(x).kappa)
                count.add(f"{path.name} {trial}", "read" if same else "silently another", same)
            except (ValueError, OSError) as error:
                count.add(f"{path.name} {trial}", "refused", bool(str(error)))
            except Exception as error:
                count.add(f"{path.name} {trial}", f"{type(error).__name__}: {error}", False)
    return count


# --- FAISS' files ---

SEARCHER = """
import sys
import numpy as np
from laplacian_metric import retrieval
for line in sys.stdin:
    try:
        index = retrieval.load(line.strip())
        answers = index.query(index.items, k=3)
        rows = np.asarray(answers.ids)
        known = set(index.ids.tolist()) | {-1}
        print("read" if set(rows.ravel().tolist()) <= known else "answers that are no items", flush=True)
    except (ValueError, OSError, MemoryError) as error:
        print("refused" if str(error) else repr(error), flush=True)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


def faiss_files(trials: int) -> Count:
    """Altered FAISS files whose digest was computed again: refused, or searched, in another process."""
    count = Count("altered FAISS files with a recomputed digest")
    generator = np.random.default_rng(2)
    searcher: subprocess.Popen[str] | None = None
    with tempfile.TemporaryDirectory() as place:
        for trial in range(trials):
            kind = ("hnsw", "ivf")[trial % 2]
            copy = Path(shutil.copytree(FORMATS / "index" / kind, Path(place) / f"{kind}-{trial}"))
            content = _damaged((copy / "index.faiss").read_bytes(), generator, (0, 0, 0, 1, 2))
            (copy / "index.faiss").write_bytes(content)
            manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
            manifest.pop("digest")
            entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            manifest["files"]["index.faiss"] = entry
            manifest["digest"] = digest_of_dict(manifest)
            (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
            if searcher is None or searcher.poll() is not None:
                searcher = subprocess.Popen(
                    [sys.executable, "-c", SEARCHER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    cwd=Path(__file__).parents[2],
                )
            assert searcher.stdin is not None
            assert searcher.stdout is not None
            searcher.stdin.write(f"{copy}\n")
            searcher.stdin.flush()
            try:
                with time_limit(SECONDS):
                    end = searcher.stdout.readline().strip()
            except TimeUp:
                searcher.kill()
                end = "hangs"
            end = end or f"ended by signal {-searcher.wait()}"
            count.add(f"{kind} {trial}", end, end in ("read", "refused"))
            shutil.rmtree(copy)
        if searcher is not None:
            searcher.kill()
            searcher.wait()
    return count


FULL: dict[str, Callable[[], Count]] = {
    "threads": lambda: threads(36),
    "kills": lambda: kills(20),
    "readers": lambda: readers(10_000),
    "disk full": disk_full,
    "malformed": lambda: malformed(100),
    "models": lambda: models(400),
    "faiss": lambda: faiss_files(400),
}


def page(counts: Sequence[Count], before: str = "") -> str:
    """Return what was counted as Markdown; rows of other attacks are kept from the page as it was ``before``."""
    rows = {
        line.split(" | ")[0].strip("| "): line
        for line in before.splitlines()
        if " of " in line and "|" in line
    }
    for count in counts:
        ends = ", ".join(f"{number:,} {end}" for end, number in sorted(count.ends.items()) if len(end) < 40)
        rows[count.name] = f"| {count.name} | {count.good:,} of {count.trials:,} | {ends} |"
    lines = [
        "# Attacks",
        "",
        "Made by `python -m tests.attack.attack --out figures/attack.md`, which takes some minutes. A trial behaves if",
        "it ends with the right result or is refused in a line or two: no silent error, traceback, hang or signal.",
        "",
        "| attack | behaved | how the trials ended |",
        "|---|---|---|",
        *rows.values(),
    ]
    return (
        "\n".join([*lines, *(f"\n- {count.name}: {text[:200]}" for count in counts for text in count.wrong)])
        + "\n"
    )


def main() -> None:
    """Run attacks by name, or all of them; print the counts, and write a page of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=", ".join(FULL))
    parser.add_argument("--out", type=Path, help="the page")
    options = parser.parse_args()
    counts = []
    for name in options.names or FULL:
        counts.append(FULL[name]())
        sys.stdout.write(f"{counts[-1]}\n")
        sys.stdout.flush()
        if options.out is not None:
            before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
            options.out.write_text(page(counts, before), encoding="utf-8")


if __name__ == "__main__":
    main()
