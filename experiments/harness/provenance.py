"""Where a result or a failure comes from: commit, command, versions, places. Nothing that names a machine."""

from __future__ import annotations

import errno
import os
import platform
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

import laplacian_metric
from laplacian_metric.encoder.precision import has_bfloat16

ROOT = Path(laplacian_metric.__file__).resolve().parents[1]
FRAMES = 6  # of a traceback, the innermost
SOURCES = ("hessians", "laplacian_metric", "experiments", "benchmarks")

# A path from the root of a file system, up to its last part.
_ABSOLUTE = re.compile(r"(?<![\w.:/\\])(?:~|[A-Za-z]:)?[/\\]+(?:[^\s/\\:'\",;()]+[/\\]+)+")


def without_paths(text: str) -> str:
    """A text in which of every absolute path only the last part is left.

    Example:
        >>> without_paths("no file '/a/b/x.bin': see docs/data.md")
        "no file 'x.bin': see docs/data.md"
    """
    return _ABSOLUTE.sub("", text)


def commit() -> str:
    """The commit of the sources, and whether they were changed since; "unknown" outside of a repository."""
    git = ["git", "-C", str(ROOT)]
    places = [name for name in SOURCES if (ROOT / name).is_dir()]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        )
        status = [*git, "status", "--porcelain", "--untracked-files=no", "--", *places]
        changed = subprocess.run(status, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + (" with changes" if changed.stdout else "")


def command(arguments: list[str] | None = None) -> str:
    """The command that is running, with the last parts of the folders that it was given."""
    words = sys.argv if arguments is None else arguments
    program = Path(words[0])
    inside = program.resolve().is_relative_to(ROOT) if program.is_absolute() else False
    if inside and program.suffix == ".py":
        parts = program.resolve().relative_to(ROOT).with_suffix("").parts
        start = f"python -m {'.'.join(part for part in parts if part != '__main__')}"
    else:
        start = program.name
    shown = []
    for word in words[1:]:
        path = Path(word)
        elsewhere = path.is_absolute() or word.startswith("~") or ".." in path.parts
        shown.append(path.name if elsewhere else word)
    return " ".join([start, *shown])


def machine() -> dict[str, Any]:
    """Return the versions, processors and threads that seconds depend on; nothing that names the machine."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def environment(device: str = "cpu") -> dict[str, Any]:
    """What the numbers and the seconds depend on; `device` is where networks compute."""
    return {
        "laplacian_metric": laplacian_metric.__version__,
        **machine(),
        # Whether networks computed in it where their cell has it; without it they did so in float32.
        "bfloat16": has_bfloat16(torch.device(device)),
    }


def failure(error: BaseException) -> str:
    """What went wrong, with the innermost places of this project's sources, and no folder of this machine."""
    places = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_absolute() and path.is_relative_to(ROOT):
            places.append(f"{path.relative_to(ROOT).as_posix()}:{frame.lineno} in {frame.name}")
        else:
            places.append(f"{path.name}:{frame.lineno} in {frame.name}")
    message = without_paths(f"{type(error).__name__}: {error}")
    return f"{message} ({'; '.join(places[-FRAMES:])})" if places else message


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, is that there is no space left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):  # as the writer of safetensors says it
            return True
        error = error.__cause__ or error.__context__
    return False
