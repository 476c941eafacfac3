"""Tables as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from experiments.harness.tables.tables import Entry, Line, ResultTable

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "κ": r"$\kappa$",
    "–": "--",
    "−": r"$-$",
    "×": r"$\times$",
}


def markdown(table: ResultTable) -> str:
    """The table as a Markdown page.

    Example:
        >>> print(markdown(ResultTable("t", "T", ("ECE",), (Line("a|b", (Entry("0.1", bold=True),)),), ("Note.",))))
        # T
        <BLANKLINE>
        | | ECE |
        |---|---|
        | a\\|b | **0.1** |
        <BLANKLINE>
        - Note.
        <BLANKLINE>
    """
    width = len(table.header)
    lines = [
        f"# {_markdown(table.title)}",
        "",
        "| | " + " | ".join(_markdown(name) for name in table.header) + " |",
        "|---" * (width + 1) + "|",
        *(_markdown_line(line, width) for line in table.lines),
        "",
        *(f"- {_spans(note, _markdown, '`{}`'.format)}" for note in table.notes),
        "",
    ]
    return "\n".join(lines)


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*\[\]<|]|\b_|_\b)", r"\\\1", " ".join(text.split()))


def _markdown_line(line: Line, width: int) -> str:
    if line.kind == "group":
        return f"| *{_markdown(line.label)}* |" + " |" * width
    texts = [
        f"**{_markdown(entry.text)}**" if entry.bold else _markdown(entry.text) for entry in line.entries
    ]
    label = _markdown(line.label)
    if line.kind == "published":
        label, texts = f"*{label}*", [f"*{text}*" if text else "" for text in texts]
    return "| " + " | ".join([label, *texts]) + " |"


def latex(table: ResultTable) -> str:
    r"""The table as a LaTeX float; it needs the package booktabs, and `\label` is `tab:` with the table's name.

    Example:
        >>> text = latex(ResultTable("t", "T", ("ECE ↓",), (Line("a_b", (Entry("0.1 ± 0.0", bold=True),)),), ()))
        >>> print(text.splitlines()[8])
        a\_b & \textbf{0.1 $\pm$ 0.0} \\
    """
    width = len(table.header)
    caption = " ".join(
        [
            _latex(table.title) + ".",
            *(_spans(note, _latex, r"\texttt{{{}}}".format, _latex) for note in table.notes),
        ]
    )
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', table.name)}}}",
        rf"\begin{{tabular}}{{l{'c' * width}}}",
        r"\toprule",
        " & ".join(["", *(_latex(name) for name in table.header)]).strip() + r" \\",
        r"\midrule",
        *_latex_lines(table.lines, width),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _latex_lines(lines: Sequence[Line], width: int) -> list[str]:
    written: list[str] = []
    for line in lines:
        if line.kind == "group":
            written += [r"\midrule"] if written else []
            written.append(rf"\multicolumn{{{width + 1}}}{{l}}{{\emph{{{_latex(line.label)}}}}} \\")
            continue
        texts = [_latex_entry(entry) for entry in line.entries]
        label = _latex(line.label)
        if line.kind == "published":
            label = rf"\quad\emph{{{label}}}"
            texts = [rf"\emph{{{text}}}" if text else "" for text in texts]
        # An entry that begins with a bracket would be read as the option of the \\ before it.
        written.append(" & ".join([f"{{}}{label}" if label.startswith("[") else label, *texts]) + r" \\")
    return written


def _latex_entry(entry: Entry) -> str:
    return rf"\textbf{{{_latex(entry.text)}}}" if entry.bold else _latex(entry.text)


def _spans(
    text: str,
    plain: Callable[[str], str],
    code: Callable[[str], str],
    within: Callable[[str], str] = str,
) -> str:
    """A text with `code` in backticks, each kind of part written in its own way."""
    parts = re.split(r"`([^`]*)`", text)
    written = []
    for number, part in enumerate(parts):
        if number % 2:
            written.append(code(within(part)))
            continue
        # Spaces at the ends belong to the sentence.
        before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
        written.append(before + plain(part) + after if part.strip() else part)
    return "".join(written)
