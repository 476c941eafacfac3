"""A new user's path from a folder of photographs to answers: every command, what it printed, and how long it took.

    python -m experiments.newcomer --data DATA --out figures/newcomer.md

The photographs are those of the Grocery data set, laid out as somebody's own: a folder for each kind, no splits, some
kinds left aside as what the model has never seen, and a picture that is there twice.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.transcript import cleaned, shortened
from laplacian_metric.core.files import atomic_write

KINDS, EACH, OTHERS = 9, 90, 12  # kinds of fruit, photographs of each, and photographs of each other kind
WEIGHTS = "resnet50_imagenet_v1.safetensors"

# What is said before each command.
STEPS: tuple[tuple[str, str], ...] = (
    (
        "Which encoders are there? A wrong name is answered with the right ones.",
        "lam fit --encoder resnet50 --data photos --out model",
    ),
    (
        "A posterior, and a calibrated probability that the nearest photograph is right.",
        "lam fit --encoder resnet50-gem-v1 --weights resnet50.safetensors --image-size 64 --data photos --calibrate"
        " --cache features --out model",
    ),
    (
        "Nothing is overwritten by a second command, which is refused before it computes anything.",
        "lam fit --encoder resnet50-gem-v1 --weights resnet50.safetensors --data photos --out model",
    ),
    (
        "What is it worth, on photographs that it has not seen, and on other fruit?",
        "lam evaluate model photos:test --ood others --out trust.json",
    ),
    (
        "Is the posterior's own uncertainty, 1/kappa, better than that probability? The features are kept.",
        "lam fit --encoder resnet50-gem-v1 --weights resnet50.safetensors --image-size 64 --data photos"
        " --structure lowrank --cache features --out posterior",
    ),
    ("", "lam evaluate posterior photos:test --ood others --out kappa.json"),
    ("", "lam compare trust.json kappa.json"),
    ("A page to look at, and to send.", "lam report model photos:test --ood others --out report"),
    (
        "An index. One photograph is there twice.",
        "lam index model photos:train --out fruit",
    ),
    (
        "Again without the repeat, and with a promise about wrong answers.",
        "lam index model photos:train --calibrate photos:test --alpha 0.2 --drop-duplicates --force --out fruit",
    ),
    ("A new photograph.", "lam embed model new.jpg --out new.npz"),
    ("", "lam query fruit --array new.npz -k 3"),
    ("Other fruit, of which there is none in the index.", "lam embed model others --out others.npz"),
    ("", "lam query fruit --array others.npz -k 1"),
    ("A mistake in a name.", "lam query fruit --id apple/1.jpg"),
)


def lay_out(data: Path, place: Path) -> None:
    """Copy the photographs as somebody would have them."""
    kinds = sorted(path.name for path in (data / "grocery" / "train").iterdir() if path.is_dir())

    def copy(kind: str, count: int, folder: Path) -> None:
        files = [
            path for split in ("train", "val", "test") for path in (data / "grocery" / split / kind).glob("*")
        ]
        folder.mkdir(parents=True)
        for path in sorted(files, key=lambda path: path.name)[:count]:
            shutil.copy(path, folder / path.name)

    for kind in kinds[:KINDS]:
        copy(kind, EACH + (kind == kinds[0]), place / "photos" / kind)
    for kind in kinds[KINDS:]:
        copy(kind, OTHERS, place / "others" / kind)
    first = sorted((place / "photos" / kinds[0]).iterdir())
    first[-1].rename(place / "new.jpg")
    shutil.copy(first[0], first[0].with_stem("copy-of-" + first[0].stem))
    (place / "resnet50.safetensors").symlink_to((data / "weights" / WEIGHTS).resolve())


def called(command: str, place: Path) -> tuple[float, list[str]]:
    """Run a command in a folder; return its seconds and what it printed, with its exit code where that is not 0."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "laplacian_metric.cli", *shlex.split(command)[1:]],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = cleaned(done.stdout, place)
    return time.monotonic() - begun, [*lines, f"[exit code {done.returncode}]"] if done.returncode else lines


def page(parts: Sequence[tuple[str, str, float, Sequence[str]]], layout: Sequence[str]) -> str:
    """Return commands, their seconds and their lines as Markdown."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    lines = [
        "# A new user's path",
        "",
        "Made by `python -m experiments.newcomer --data DATA --out figures/newcomer.md`, with "
        + system
        + ",",
        "one thread, beside other work: the seconds are upper bounds. Standard output and standard error are",
        "shown as they come through a pipe.",
        "",
        "The folder, with photographs of fruit:",
        "",
        "```text",
        *layout,
        "```",
    ]
    for words, command, seconds, shown in parts:
        lines += ["", *([words, ""] if words else []), "```console", f"$ {command}", *shortened(shown), "```"]
        lines += ["", f"{seconds:.0f} s."]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Go the way, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that has grocery/ and weights/")
    parser.add_argument("--out", type=Path, required=True, help="the page")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        lay_out(options.data, place)
        layout = [
            f"{path.relative_to(place)}/  {len(list(path.iterdir()))} photographs"
            for path in sorted(place.glob("*/*"))
        ]
        layout += ["new.jpg", "resnet50.safetensors"]
        parts = []
        for words, command in STEPS:
            seconds, shown = called(command, place)
            sys.stderr.write(f"{command}: {seconds:.0f} s\n")
            parts.append((words, command, seconds, shown))
    with atomic_write(options.out) as temporary:
        temporary.write_text(page(parts, layout), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
