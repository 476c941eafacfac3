"""Calling `lam`, and small things to call it with."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from laplacian_metric.cli import app
from laplacian_metric.data import load


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code, and what it printed without colours, in one line each."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output, all of which is JSON."""
        return json.loads(self.out)


def lam(*arguments: object) -> Done:
    """Call a command in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, _plain(result.stdout), _plain(result.stderr))


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def refused(*arguments: object, code: int = 1) -> str:
    """Call a command that has to fail: what it says, in a line or two and without a traceback."""
    done = lam(*arguments)
    assert done.code == code, (done.code, done.out, done.err)
    assert "Traceback" not in done.err, done.err
    assert done.out == ""
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.err
    return " ".join(done.err[done.err.index("error: ") :].split())


def worked(*arguments: object) -> Done:
    """Call a command that has to succeed."""
    done = lam(*arguments)
    assert done.code == 0, (done.code, done.out, done.err)
    return done


def photos(
    folder: Path,
    each: int,
    classes: int = 4,
    name: str = "sample-fashion-mnist",
    split: str = "train+validation",
) -> Path:
    """A folder with a folder of images for every class."""
    sample = load(name, split)
    for label in range(classes):
        rows = (sample.labels == label).nonzero()[:each, 0].tolist()
        place = folder / f"class {label}"
        place.mkdir(parents=True)
        for number, row in enumerate(rows):
            Image.fromarray(sample.images[row, 0].numpy()).save(place / f"{number:03d}.png")
    return folder


def clusters(
    count: int = 200, classes: int = 4, width: int = 6, spread: float = 0.35, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features (N, H) around one centre for each class, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    features = torch.eye(width)[labels] + spread * torch.randn(count, width, generator=generator)
    return features.numpy(), labels.numpy()
