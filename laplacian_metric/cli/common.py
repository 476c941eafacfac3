"""How every command reports mistakes, warnings and results."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.table import Table

INTERRUPTED = 130
PROGRESS = "laplacian_metric.progress"
LONGEST = 2000
AFTER_THE_FIRST = slice(1, None)
# The library's name of an argument and the option of the command line.
FLAGS = {
    "overwrite=True": "--force",
    "lower n_effective": "raise --temperature",
    "skip_unreadable=True": "--skip-broken",
}
# What the library raises for wrong input, damaged files and missing resources. Everything else is a defect.
MISTAKES = (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError, MemoryError)
MISTAKES_BY_NAME = ("SafetensorError",)  # importing their modules takes long
WIDE = 10_000  # columns of a table that no terminal shows


class Commands(TyperGroup):
    """A group of commands that ends every mistake with a line or two, and that can be interrupted."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _short_messages():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            error("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as mistake:
            # Usage errors are typer's own, which shows them with the usage of the command.
            if ctx.params.get("debug") or type(mistake).__module__.split(".")[0] in ("typer", "click"):
                raise
            if isinstance(mistake, MISTAKES) or type(mistake).__name__ in MISTAKES_BY_NAME:
                error(message_of(mistake))
            else:
                error(
                    f"unexpected {type(mistake).__name__}: {message_of(mistake)}\n"
                    "This is a defect of laplacian_metric; lam --debug COMMAND shows where it comes from."
                )
            raise typer.Exit(1) from None


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name == PROGRESS:
            note(record.getMessage())
        elif record.levelno >= logging.WARNING:
            warn(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def _short_messages() -> Iterator[None]:
    """Show warnings and logged warnings, and how far long work is, on standard error, without lines of source code."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
            warn(f"warning: {_with_options(str(message))}")

    logger, handler, progress = logging.getLogger("laplacian_metric"), _Handler(), logging.getLogger(PROGRESS)
    level = progress.level
    logger.addHandler(handler)
    progress.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)
        progress.setLevel(level)


def message_of(mistake: BaseException) -> str:
    """Return an error's message in one line, with the library's argument names replaced by options.

    Example:
        >>> message_of(KeyError("no id 'x'"))
        "no id 'x'"
        >>> message_of(FileExistsError("m holds a model already: pass overwrite=True to replace it"))
        'm holds a model already: pass --force to replace it'
    """
    if isinstance(mistake, KeyError) and mistake.args:
        text = str(mistake.args[0])
    elif isinstance(mistake, OSError) and mistake.strerror and mistake.filename:
        text = f"{mistake.filename}: {mistake.strerror}"
    else:
        text = str(mistake)
    if type(mistake) is RuntimeError:  # torch appends lines of advice
        text = text.strip().split("\n")[0]
    if "\nOriginal Traceback" in text:  # from a worker process of a DataLoader
        text = text.strip().split("\n")[-1].partition(": ")[2]
    text = re.sub(r"\s*\n\s*", " ", text)  # parsers point at a place in several lines
    text = _with_options(text)
    # By its name, since importing the class imports torch.
    if type(mistake).__name__ == "UnreadableImageError" and "--skip-broken" not in text:
        text += "; --skip-broken leaves such images out"
    return text[:LONGEST] or type(mistake).__name__


def _with_options(text: str) -> str:
    """Replace the library's argument names by the command line's options."""
    for argument, option in FLAGS.items():
        text = text.replace(argument, option)
    return text


# --- messages, on standard error ---


def note(text: str) -> None:
    """Print a message that is not a result."""
    typer.echo(printable(text), err=True)


def warn(text: str) -> None:
    """Print a warning."""
    typer.secho(printable(text), fg="yellow", err=True)


def error(text: str) -> None:
    """Print why a command failed."""
    typer.secho(printable(f"error: {text}"), fg="red", err=True)


def printable(text: object) -> str:
    """Return a text in which nothing controls a terminal: file names and ids can hold anything.

    Example:
        >>> printable("\\x1b[2Jcat\\n")
        '\\ufffd[2Jcat\\n'
    """
    return "".join(
        character if character == "\n" or unicodedata.category(character)[0] != "C" else "\ufffd"
        for character in str(text)
    )


# --- results, on standard output ---


def as_json(content: Any) -> str:
    """Return the text of a JSON file; characters that UTF-8 cannot hold are escaped.

    Example:
        >>> as_json(["ü", "\\udcff"])
        '[\\n "ü",\\n "\\\\udcff"\\n]\\n'
    """
    from laplacian_metric.core.checked import finite

    text = json.dumps(finite(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def print_json(content: Any) -> None:
    """Print a result for machines."""
    sys.stdout.write(as_json(content))
    sys.stdout.flush()


def write_json(path: Path, content: Any, force: bool) -> None:
    """Write a result file, whole or not at all."""
    from laplacian_metric.core.files import atomic_write

    check_new(path, force)
    with atomic_write(path) as temporary:
        temporary.write_text(as_json(content), encoding="utf-8")


def check_new(path: Path, force: bool) -> None:
    """Refuse to replace a file without ``force``; called before anything is computed."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into: make it first")
    if path.exists() and not force:
        raise FileExistsError(f"{path} is there already: --force replaces it, or name another file")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: slice = AFTER_THE_FIRST) -> Table:
    """Return a table for `show`; the ``numeric`` columns are flush right, and an empty header is left out.

    Example:
        >>> show(table(("metric", "value"), [("recall@1", "0.9"), ("ausc", "0.95")]))
        metric    value
        recall@1    0.9
        ausc       0.95
    """
    from rich.table import Table

    right = range(len(header))[numeric]
    text = Table(box=None, show_header=any(header), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column, name in enumerate(header):
        text.add_column(printable(name), justify="right" if column in right else "left")
    for row in rows:
        text.add_row(*map(printable, row))
    return text


def show(*parts: str | Table) -> None:
    """Print a result for people: lines and tables."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDE
    for part in parts:
        with console.capture() as lines:
            console.print(printable(part) if isinstance(part, str) else part)
        typer.echo(re.sub(" +$", "", lines.get(), flags=re.MULTILINE), nl=False)


def number(value: float | None, digits: int = 4) -> str:
    """Return a number as text, or a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"
