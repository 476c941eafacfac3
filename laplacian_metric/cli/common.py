"""What all commands have in common: how they speak, and how they end."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

INTERRUPTED = 130
WIDTH = 120  # of tables that go into a file or a pipe
LONGEST = 2000
# What library functions call things, and what they are called here.
FLAGS = {
    "overwrite=True": "--force",
    "skip_unreadable=True": "--skip-broken",
    "data_dir or": "--data-dir or",
    "Pass the folder that save wrote": "Name a folder that lam index made",
    "pass the architecture that the weights were saved from": "pass the --encoder that the weights were saved from",
    ", or prefix= to pick those whose names begin with it": "",
    ', or part="backbone" to leave the head out': "",
}
# A mistake of whoever gives the command, as the library says it.
MISTAKES = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
)


class Commands(TyperGroup):
    """Commands whose mistakes are told in a line or two, and which can be interrupted."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _warnings_in_a_line(), _log_in_a_line():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            error("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except MISTAKES as mistake:
            if ctx.params.get("debug"):
                raise
            error(said(mistake))
            raise typer.Exit(1) from None


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Warnings without the place in the sources that they come from."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
            speaker().print(f"warning: {message}", style="yellow")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


class _Handler(logging.Handler):
    """Says what the library logs."""

    def emit(self, record: logging.LogRecord) -> None:
        speaker().print(f"{record.levelname.lower()}: {record.getMessage()}", style="yellow")


@contextmanager
def _log_in_a_line() -> Iterator[None]:
    """Warnings that the library logs, on standard error."""
    logger, handler = logging.getLogger("laplacian_metric"), _Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def said(mistake: BaseException) -> str:
    """What an error says, with the names that things have on the command line.

    Example:
        >>> said(KeyError("no id 'x'"))
        "no id 'x'"
        >>> said(FileExistsError("m holds a model already: pass overwrite=True to replace it"))
        'm holds a model already: pass --force to replace it'
    """
    if isinstance(mistake, KeyError) and mistake.args:
        text = str(mistake.args[0])
    elif isinstance(mistake, OSError) and mistake.strerror and mistake.filename:
        text = f"{mistake.filename}: {mistake.strerror}"
    else:
        text = str(mistake)
    if type(mistake) is RuntimeError:  # torch says more than fits
        text = text.strip().split("\n")[0]
    if "\nOriginal Traceback" in text:  # of a process that reads files
        text = text.strip().split("\n")[-1].partition(": ")[2]
    text = re.sub(r"\s*\n\s*", " ", text)  # of parsers, which point at a place in several lines
    for before, after in FLAGS.items():
        text = text.replace(before, after)
    # By its name, since whoever has it imports torch.
    if type(mistake).__name__ == "UnreadableImageError" and "--skip-broken" not in text:
        text += "; --skip-broken leaves such images out"
    return text[:LONGEST] or type(mistake).__name__


class Speaker:
    """Says things on standard error, as it is when they are said."""

    def print(self, text: str, style: str | None = None) -> None:
        Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def speaker() -> Speaker:
    """Of messages."""
    return Speaker()


def note(text: str) -> None:
    """Something that is no result."""
    speaker().print(text)


def error(text: str) -> None:
    """Why it did not work."""
    speaker().print(f"error: {text}", style="red")


# --- results ---


def finite(value: Any) -> Any:
    """The same with None for what JSON has no word for.

    Example:
        >>> finite({"kappa": float("inf"), "ids": ("a",)})
        {'kappa': None, 'ids': ['a']}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_json(content: Any) -> None:
    """A result for machines: all that standard output gets."""
    sys.stdout.write(as_json(content))
    sys.stdout.flush()


def as_json(content: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(finite(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, content: Any, force: bool) -> None:
    """Write a result file, whole or not at all."""
    from laplacian_metric.core.files import atomic_write

    check_new(path, force)
    with atomic_write(path) as temporary:
        temporary.write_text(as_json(content), encoding="utf-8")


def check_new(path: Path, force: bool) -> None:
    """Refuse to replace a file, unless that is asked for; before anything is computed."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into: make it first")
    if path.exists() and not force:
        raise FileExistsError(f"{path} is there already: --force replaces it, or name another file")


def printer() -> Console:
    """Of results for people."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: int = 1) -> Table:
    """A table whose columns from ``numeric`` on have numbers in them; empty headers leave the line of headers out."""
    made = Table(show_header=any(header))
    for number, name in enumerate(header):
        made.add_column(name, justify="right" if number >= numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_plain(cell) for cell in row))
    return made


def show(text: str | None, made: Table | None = None) -> None:
    """A result for people: a line, and a table below it."""
    console = printer()
    if text:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if made is not None:
        console.print(made)


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)  # names of files are no markup


def number(value: float | None, digits: int = 4) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"
