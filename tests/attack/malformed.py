"""Malformed inputs of the command line: read, or refused in a line or two."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from laplacian_metric.encoder import Encoder, save_encoder
from tests.attack.counting import SECONDS, TRACEBACK, Count, damaged, time_limit
from tests.cli.running import clusters, lam
from tests.manifests import content, rewrite


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


Attacks = Iterator[tuple[str, list[object]]]


def _attacks(place: Path, per_file: int, generator: np.random.Generator) -> Attacks:
    """Yield what is wrong and the arguments of the command that meets it."""
    rows, labels = clusters(300)
    np.savez(place / "features.npz", features=rows, labels=labels)
    np.savez(place / "queries.npz", features=clusters(60, seed=1)[0])
    for command in (
        [
            "fit",
            "--features",
            place / "features.npz",
            "--dim",
            4,
            "--steps",
            5,
            "--calibrate",
            "--out",
            place / "m",
        ],
        ["index", place / "m", place / "features.npz", "--out", place / "i"],
        ["embed", place / "m", place / "queries.npz", "--out", place / "embedded.npz"],
        ["embed", place / "m", place / "queries.npz", "--out", place / "embedded.safetensors"],
    ):
        done = lam(*command)
        assert done.code == 0, done.err
    yield from _altered_bytes(place, per_file, generator)
    yield from _altered_manifests(place)
    yield from _wrong_embeddings(place)
    yield from _wrong_configurations(place)
    yield from _wrong_caches_and_images(place, generator)
    yield from _wrong_options(place)


def _altered_bytes(place: Path, per_file: int, generator: np.random.Generator) -> Attacks:
    """Bytes changed, cut off and added, in every kind of file."""
    for source in ("queries.npz", "embedded.npz", "embedded.safetensors"):
        for number in range(per_file):
            path = place / f"damaged-{number}{Path(source).suffix}"
            path.write_bytes(damaged((place / source).read_bytes(), generator))
            yield f"{source} {number}", ["query", place / "i", path]
            yield f"{source} {number}", ["embed", place / "m", path, "--out", place / "e.npz", "--force"]
    for folder, command in (("m", "embed"), ("i", "query")):
        files = [
            path.relative_to(place / folder) for path in sorted((place / folder).rglob("*")) if path.is_file()
        ]
        for number in range(per_file * len(files)):
            copy = Path(shutil.copytree(place / folder, place / f"{command}-{number}"))
            path = copy / files[number % len(files)]
            path.write_bytes(damaged(path.read_bytes() or b"0", generator))
            yield f"{folder}/{path.name} {number}", [command, copy, *_rest(place, command)]
            shutil.rmtree(copy)


def _rest(place: Path, command: str) -> list[object]:
    out = ["--out", place / "e.npz", "--force"] if command == "embed" else []
    return [place / "queries.npz", *out]


def _altered_manifests(place: Path) -> Attacks:
    """Manifests whose digest is right and whose entries are not."""
    for folder, command in (("m", "embed"), ("i", "query")):
        for key in content(place / folder):
            for value in (None, [], {}, "x", -1, 1e300, {"x": {"y": 1}}, ...):
                copy = Path(shutil.copytree(place / folder, place / "altered", dirs_exist_ok=True))
                rewrite(copy, **{key: value})
                yield f"{folder}: {key} = {value!r}", [command, copy, *_rest(place, command)]
                shutil.rmtree(copy)


def _wrong_embeddings(place: Path) -> Attacks:
    """Files of embeddings with wrong notes, or of another kind."""
    from safetensors.numpy import load_file, save_file

    arrays = load_file(place / "embedded.safetensors")
    for number, note in enumerate(("[]", "1", "null", "{", "", '{"ids": 1}', '{"ids": [], "source": []}')):
        save_file(arrays, place / f"note-{number}.safetensors", metadata={"ids": note, "labels": note})
        yield f"note {note}", ["query", place / "i", place / f"note-{number}.safetensors"]
    torch.save({"mean": torch.eye(3)}, place / "pickled.safetensors")
    yield "torch.save named .safetensors", ["query", place / "i", place / "pickled.safetensors"]
    yield (
        "the same as features",
        ["embed", place / "m", place / "pickled.safetensors", "--out", place / "x.npz"],
    )


def _wrong_configurations(place: Path) -> Attacks:
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


def _wrong_caches_and_images(place: Path, generator: np.random.Generator) -> Attacks:
    """Altered feature caches, pipes and devices among images, and names that control a terminal."""
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
    os.mkfifo(photos / "a" / "pipe.png")
    (photos / "a" / "device.png").symlink_to("/dev/zero")
    yield "a pipe and a device among images", _fit(place, photos, None, 90)
    (photos / "a" / "pipe.png").unlink()
    (photos / "a" / "device.png").unlink()
    (photos / "a" / "\x1b[2J\x1b]0;x\x07.png").write_bytes(b"no image")
    yield "escapes in a file name", _fit(place, photos, None, 91)


def _wrong_options(place: Path) -> Attacks:
    """An array that announces more than it holds, and options that cannot be."""
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 6000), }"
    (place / "large.npy").write_bytes(header.ljust(127) + b"\n")
    model, features = place / "m", place / "features.npz"
    yield "an announced array of 23 GiB", ["embed", model, place / "large.npy", "--out", place / "x.npz"]
    for out in ("", place, "/proc/x.npz", place / "none" / "x.npz"):
        yield f"--out {out!s:.20}", ["embed", model, features, "--out", out]
    for k in (-1, 0, 10**9, "x"):
        yield f"-k {k}", ["query", place / "i", place / "queries.npz", "-k", k]
    for samples in (-1, 0, "x"):
        yield f"--samples {samples}", ["evaluate", model, features, "--samples", samples]


def _fit(place: Path, photos: Path, cache: Path | None, number: int) -> list[object]:
    weights = place / "fashion-mnist.safetensors"
    if not weights.exists():
        save_encoder(Encoder.from_name("fashion-mnist", dim=3, seed=0), weights)
    arguments: list[object] = ["fit", "--encoder", "fashion-mnist", "--weights", weights, "--data", photos]
    arguments += ["--dim", 3, "--image-size", 28, "--channels", 1, "--out", place / f"fitted-{number}"]
    return arguments if cache is None else [*arguments, "--cache", cache]


def _image(path: Path, generator: np.random.Generator) -> None:
    from PIL import Image

    Image.fromarray(generator.integers(0, 256, (28, 28), dtype=np.uint8)).save(path)
