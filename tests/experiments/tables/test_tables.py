"""Tables: numbers recomputed by hand, the rule for bold, what is not there, Markdown."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.harness.results import Epoch, Result, Training, read_results
from experiments.harness.tables.descriptions import (
    PublishedNumber,
    PublishedTable,
    TableDescription,
    parse_table,
)
from experiments.harness.tables.precisions import Precisions
from experiments.harness.tables.seeds import TRIVIAL
from experiments.harness.tables.table_columns import find
from experiments.harness.tables.table_text import Entry, Line, ResultTable, markdown
from experiments.harness.tables.tables import build_table
from laplacian_metric.metrics.evaluation import Score
from tests.experiments.tables.synthetic import failure, result, write

T = {1: 12.706204736432095, 2: 4.302652729911275}  # Student's 97.5 % quantiles for 1 and 2 degrees of freedom


def of(cell: str, values: Sequence[float], *, score: str = "own") -> list[Result]:
    """Results with an R-AUROC for each seed and nothing else."""
    return [
        Result(
            cell=cell, seed=seed, retrieval={"test": {"map@1": value}}, scores={score: Score(r_auroc=value)}
        )
        for seed, value in enumerate(values)
    ]


def table(*cells: str, columns: Sequence[Any] = ("R-AUROC",), **more: Any) -> TableDescription:
    rows = [{"label": f"method {cell}", "cell": cell} for cell in cells]
    return parse_table("t", {"title": "T", "columns": list(columns), "rows": rows, **more})


def line(built: ResultTable, label: str) -> list[str]:
    return next([entry.text for entry in line.entries] for line in built.lines if line.label == label)


def bold(built: ResultTable) -> list[str]:
    return [line.label for line in built.lines if line.entries and line.entries[0].bold]


def test_numbers_by_hand(tmp_path: Path) -> None:
    contents = [result("m/a", seed) for seed in range(3)]
    for content in contents:
        write(tmp_path, content)
    columns = ["mAP@5", {"metric": "AUROC", "out": "svhn"}, "ECE", "seconds, training"]
    built = build_table(table("m/a", columns=columns), read_results(tmp_path))
    values = [
        [content["retrieval"]["test"]["map@5"] for content in contents],
        [content["scores"]["own"]["out"]["svhn"]["auroc"] for content in contents],
        [content["calibration"]["ece"] for content in contents],
    ]
    expected = [f"{statistics.mean(v):.3f} ± {statistics.stdev(v):.3f}" for v in values]
    assert line(built, "method m/a") == [*expected, "11.0 ± 1.0", "3"]
    assert built.header == ("mAP@5 ↑", "AUROC ↑", "ECE ↓", "seconds, training ↓", "seeds")


def trained(cell: str, seed: int, precision: str, has: bool | None, base: str = "") -> Result:
    """A result of a machine with or without instructions for bfloat16, or from before that was said."""
    return Result(
        cell=cell,
        seed=seed,
        config={"base": base} if base else {"base": None, "training": {"precision": precision}},
        environment={} if has is None else {"bfloat16": has},
        scores={"own": Score(r_auroc=0.5)},
    )


def test_a_table_says_which_networks_were_trained_in_another_precision() -> None:
    results = [
        trained("a", 0, "bfloat16", None),
        trained("a", 1, "bfloat16", False),
        trained("b", 0, "bfloat16", True),
        trained("b", 1, "", None, base="a"),
        trained("c", 0, "bfloat16", True),
    ]
    built = build_table(table("a", "b", "c"), results)
    assert "Trained in float32, not in bfloat16 like most others: `a`, `b` (seed 1)." in built.notes
    results.append(trained("c", 1, "float32", True))
    built = build_table(table("a", "b", "c"), results)
    # As many of each: float32 is the last by name.
    assert "Trained in bfloat16, not in float32 like most others: `a`, `b`, `c` (seed 0)." in built.notes


def test_the_precision_is_that_of_the_epochs_and_of_all_networks() -> None:
    def epochs(cell: str, seed: int, *precisions: str, **config: Any) -> Result:
        history = tuple(
            Epoch(epoch=number, loss=0.1, precision=said) for number, said in enumerate(precisions, 1)
        )
        # The machine that wrote it is another one.
        content = {"training": {"precision": "bfloat16"}, **config}
        return Result(
            cell=cell,
            seed=seed,
            config=content,
            environment={"bfloat16": False},
            training=Training(history=history),
        )

    of_two = {"base": "a", "members": 2}
    ensemble = [
        Result(cell="e", seed=seed, config={**of_two, "method": {"name": "ensemble"}}) for seed in (0, 1)
    ]
    averaged = [epochs("s", seed, "float32", base="a", method={"name": "swag"}) for seed in (0, 2)]
    head = epochs("p", 0, "float32", base="a", method={"name": "pfe"})
    results = [
        epochs("a", 0, "bfloat16", "bfloat16"),
        epochs("a", 1, "bfloat16"),
        epochs("a", 2, "float32"),
        epochs("a", 4, "bfloat16", "float32"),
    ]
    precisions = Precisions([*results, *ensemble, *averaged, head])
    precisions_of_results = [precisions.of(result) for result in results]
    assert precisions_of_results == ["bfloat16", "bfloat16", "float32", "bfloat16 and float32"]
    # The second ensemble has networks 2 and 3, of which one is not there.
    assert [precisions.of(result) for result in ensemble] == ["bfloat16", None]
    assert [precisions.of(result) for result in averaged] == ["bfloat16 and float32", "float32"]
    assert precisions.of(head) == "bfloat16"


@pytest.mark.parametrize(
    "results",
    [
        [trained("a", 0, "bfloat16", None), trained("b", 0, "bfloat16", True)],
        [trained("a", 0, "bfloat16", False), trained("b", 0, "float32", None)],
        [trained("a", 0, "bfloat16", True), trained("b", 0, "", False, base="a")],
        [trained("a", 0, "bfloat16", True), trained("b", 0, "", False, base="not there")],
        [trained("a", 0, "bfloat16", True), trained("b", 0, "", False, base="b")],
    ],
)
def test_nothing_is_said_of_precision_where_all_are_alike_or_it_is_not_known(results: list[Result]) -> None:
    assert not any("float" in note for note in build_table(table("a", "b"), results).notes)


def test_a_difference_between_precisions_is_told_from_one_of_corrections() -> None:
    results = [trained(cell, 0, "bfloat16", cell == "after") for cell in ("before", "after")]
    results += [trained(cell, 1, "bfloat16", True) for cell in ("before", "after")]
    pair = {"label": "L", "before": "before", "after": "after"}
    described = parse_table("t", {"title": "T", "columns": ["R-AUROC"], "pairs": [pair]})
    notes = build_table(described, results).notes
    assert any(note.startswith("L, seed 0: the two were trained in different precision") for note in notes)
    assert "Trained in float32, not in bfloat16 like most others: `before` (seed 0)." in notes
    alike = build_table(described, results[2:]).notes
    assert not any("precision" in note or "float" in note for note in alike)


def test_what_is_not_there_is_seen_and_said(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, result("good", seed))
        write(tmp_path, failure("broken", seed, "it | diverged"))
    write(tmp_path, result("half", 0))
    write(tmp_path, failure("half", 1))
    no_value = result("gap", 0)
    no_value["scores"]["own"]["r_auroc"] = None
    for content in (no_value, result("gap", 1), result("gap", 2)):
        write(tmp_path, content)
    built = build_table(table("good", "broken", "half", "absent", "gap"), read_results(tmp_path))
    assert line(built, "method broken") == ["failed", "0 of 3"]
    assert line(built, "method absent") == ["missing", "0 of 3"]
    assert line(built, "method half")[1] == "1 of 3"
    assert line(built, "method gap")[1] == "3"
    notes = "\n".join(built.notes)
    assert "`broken`: seeds 0, 1, 2 failed: it | diverged." in notes
    assert "`half`: seed 1 failed: the loss is not finite; seed 2 is missing." in notes
    assert "`absent`: no result yet." in notes
    assert "method gap: R-AUROC is defined for 2 of 3 seeds only." in notes
    assert r"it \| diverged" in markdown(built)


def test_strangers_that_no_result_has_are_said(tmp_path: Path) -> None:
    write(tmp_path, result("a", 0))
    results = read_results(tmp_path)
    said = "AUROC: no cell has OOD images called `minst`; there are: mnist, svhn."
    assert said in build_table(table("a", columns=["AUROC"], out="minst"), results).notes
    pair = {"label": "P", "before": "a", "after": "a"}
    pairs = parse_table("t", {"title": "T", "out": "minst", "columns": ["AUROC"], "pairs": [pair]})
    assert said in build_table(pairs, results).notes
    assert not any(
        "OOD images" in note for note in build_table(table("a", columns=["AUROC"], out="svhn"), results).notes
    )


def test_bold_is_what_the_intervals_separate() -> None:
    low, high = [0.50, 0.51, 0.52], [0.60, 0.61, 0.62]
    reach = T[2] * 0.01 / math.sqrt(3)
    assert 2 * reach < 0.1  # so the two intervals are apart
    assert bold(build_table(table("a", "b"), of("a", low) + of("b", high))) == ["method b"]
    near = [value - 0.1 + 2 * reach - 1e-4 for value in high]
    assert bold(build_table(table("a", "b"), of("a", low) + of("b", near))) == []
    apart = [value - 0.1 + 2 * reach + 1e-4 for value in high]
    assert bold(build_table(table("a", "b"), of("a", low) + of("b", apart))) == ["method b"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0.9], [0.1, 0.1, 0.1], []),  # the best has no interval
        ([0.5], [0.60, 0.61, 0.62], ["method b"]),  # the value of a single seed is outside
        ([0.6], [0.60, 0.61, 0.62], []),
        ([0.5, 0.5], [0.5, 0.5], []),  # the same
        ([], [0.60, 0.61, 0.62], []),  # nothing to compare with
    ],
)
def test_bold_where_there_is_little(first: list[float], second: list[float], expected: list[str]) -> None:
    assert bold(build_table(table("a", "b"), of("a", first) + of("b", second))) == expected


def test_the_lowest_error_is_the_best(tmp_path: Path) -> None:
    for cell, ece in (("a", 0.1), ("b", 0.2)):
        for seed in range(3):
            content = result(cell, seed)
            content["calibration"]["ece"] = ece + 0.001 * seed
            write(tmp_path, content)
    assert bold(build_table(table("a", "b", columns=["ECE"]), read_results(tmp_path))) == ["method a"]


def test_trivial_scores_are_rows_with_the_retrieval_of_their_network(tmp_path: Path) -> None:
    contents = [result("a", seed) for seed in range(2)]
    for content in contents:
        write(tmp_path, content)
    built = build_table(table("a", columns=["mAP@1", "R-AUROC", "ECE"], trivial="a"), read_results(tmp_path))
    own = line(built, "method a")
    for name, label in TRIVIAL.items():
        values = [content["scores"][name]["r_auroc"] for content in contents]
        expected = f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
        assert line(built, label) == [own[0], expected, "–", "2"]
    assert [table_line.label for table_line in built.lines if table_line.kind == "group"] == [
        "Without any posterior"
    ]


def test_published_numbers_stand_below_ours() -> None:
    numbers = {"R-AUROC": PublishedNumber.parse("0.70 ± 0.0")}
    published = {"p": PublishedTable(source="A paper, Table 1", rows={"row": numbers})}
    rows = [{"label": "x", "cell": "a", "published": "row"}, {"label": "y", "cell": "b"}]
    content = {"title": "T", "columns": ["mAP@1", "R-AUROC"], "rows": rows, "published": "p"}
    built = build_table(parse_table("t", content), of("a", [0.5]), published)
    assert [table_line.label for table_line in built.lines] == ["x", "paper", "y"]
    assert line(built, "paper") == ["–", "0.70 ± 0.0", ""]
    assert any("A paper, Table 1" in note for note in built.notes)
    with pytest.raises(ValueError, match="no published table is called 'p'"):
        build_table(parse_table("t", content), [], {})
    with pytest.raises(ValueError, match="p has no row 'row'; there are: other"):
        build_table(parse_table("t", content), [], {"p": PublishedTable(source="s", rows={"other": {}})})


def test_a_published_number_is_of_the_same_strangers() -> None:
    numbers = {"AUROC/svhn": PublishedNumber.parse("0.78"), "ECE": PublishedNumber.parse("0.02")}
    published = PublishedTable(source="s", rows={"row": numbers})
    assert published.number("row", find("AUROC", out="svhn")) == numbers["AUROC/svhn"]
    assert published.number("row", find("AUROC", out="mnist")) is None
    assert published.number("row", find("ECE")) == numbers["ECE"]


def test_pairs_are_compared_seed_by_seed() -> None:
    before, after = [0.50, 0.60, 0.70], [0.53, 0.64, 0.75]
    content = {"title": "T", "columns": ["R-AUROC"], "pairs": [{"label": "P", "before": "a", "after": "b"}]}
    built = build_table(parse_table("t", content), of("a", before) + of("b", after))
    reach = T[2] * statistics.stdev([0.03, 0.04, 0.05]) / math.sqrt(3)
    expected = f"+0.040 [{0.04 - reach:+.3f}, {0.04 + reach:+.3f}]"
    assert [table_line.label for table_line in built.lines] == [
        "P",
        "as published",
        "corrected",
        "difference",
    ]
    assert line(built, "as published") == ["0.600 ± 0.100", "3"]
    assert line(built, "difference") == [expected, "3"]
    assert bold(built) == ["difference"]


def test_a_difference_of_fewer_seeds_is_said() -> None:
    content = {"title": "T", "columns": ["R-AUROC"], "pairs": [{"label": "P", "before": "a", "after": "b"}]}
    built = build_table(parse_table("t", content), of("a", [0.5, math.nan, 0.6]) + of("b", [0.6, 0.6, 0.6]))
    said = "P: the difference in R-AUROC is of 2 of 3 seeds, since it is not defined for the others."
    assert said in built.notes
    whole = build_table(parse_table("t", content), of("a", [0.5, 0.6]) + of("b", [0.6, 0.6]))
    assert not any(note.startswith("P:") for note in whole.notes)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([0.5], [0.6, 0.7], ["+0.100", "1"]),
        ([], [0.6], ["–", "0"]),
        ([0.5, math.nan], [0.6, 0.7], ["+0.100", "2"]),
    ],
)
def test_pairs_with_few_seeds(before: list[float], after: list[float], expected: list[str]) -> None:
    content = {"title": "T", "columns": ["R-AUROC"], "pairs": [{"label": "P", "before": "a", "after": "b"}]}
    built = build_table(parse_table("t", content), of("a", before) + of("b", after))
    assert line(built, "difference") == expected
    assert bold(built) == []


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30))
def test_no_text_becomes_markup(text: str) -> None:
    lines = (
        Line(text, kind="group"),
        Line(text, (Entry(text, bold=True), Entry("1"))),
        Line(text, (Entry(text), Entry("")), kind="published"),
    )
    built = ResultTable(
        "a_b", text, (text, "n"), lines, (text.replace("`", "'"), f"by `{text.replace('`', '')}` now")
    )
    rows = [row for row in markdown(built).split("\n") if row.startswith("|")]
    assert len(rows) == 5
    # Signs that are escaped do not end a place of the row.
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 4 for row in rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"columns": ["ECE"]}, "title"),
        ({"title": "T", "columns": ["ECE"]}, "rows"),
        ({"title": "T", "columns": ["EZE"], "rows": []}, "EZE"),
        ({"title": "T", "columns": ["AUROC"], "rows": []}, "AUROC"),
        ({"title": "T", "columns": ["ECE"], "row": []}, "row"),
        ({"title": "T", "columns": ["ECE"], "rows": [{"label": "x"}]}, "rows[0].cell"),
        ({"title": "T", "columns": ["ECE"], "rows": [{"label": "x", "cell": "a"}] * 2}, "'x'"),
        ({"title": "T", "columns": ["ECE"], "pairs": [{"label": "x"}]}, "pairs[0].before"),
        ({"title": "T", "columns": ["ECE"], "rows": ["a"]}, "rows[0]"),
    ],
)
def test_a_wrong_description_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_table("t", content)
