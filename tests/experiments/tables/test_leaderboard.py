"""The page of a benchmark: groups that are not mixed, what chose the settings, and what was not run."""

from __future__ import annotations

from typing import Any

from experiments.harness.tables.leaderboard import leaderboard, scatter, shown
from experiments.harness.suites.judging import GALLERY, IMAGE
from experiments.harness.suites.leaderboard import Row, ranked, rows


def part(r_auroc: float) -> dict[str, Any]:
    detection = {"r_auroc": r_auroc, "r_auroc_within": 0.5, "nausc": None}
    return {
        "groups": {"own": IMAGE, "match risk": GALLERY},
        "sets": {"unseen/a": {"recall@1": 0.4, "scores": {"own": detection, "match risk": detection}}},
        "intervals": {"unseen/a": {"own": {"low": r_auroc - 0.1, "high": r_auroc + 0.1}}},
        "image": {"own": {"crop_test": 0.7, "corruption": {"noise-1.0": 0.8}}},
        "ms": {"backbone": 1.0, "method": 0.5},
        "parameters": 2_000_000,
    }


def results() -> dict[str, Any]:
    setting = {"options": {"training": {"learning_rate": 0.1}}}
    entry = {"title": "PFE <b>", "score": "own", "settings": [setting], "method": {"name": "pfe"}}
    choice = {"V1": {"setting": 0, "note": ""}}
    done = {**entry, "chosen": choice, "seeds": {"V1": {"0": part(0.6), "1": part(0.7)}}}
    missing = {**entry, "title": "HIB", "chosen": {}, "seeds": {}}
    track = {"title": "A track", "entries": {"pfe": done, "hib": missing}}
    return {
        "suite": "s",
        "version": 3,
        "title": "A suite",
        "choices": {"V1": "by validation classes"},
        "commit": "abc",
        "tracks": {"t": track},
        "digests": {"t": {"unseen/a": "123"}},
    }


def test_rows_are_means_over_seeds() -> None:
    own = next(row for row in rows(results()) if row.score == "own" and row.seeds)
    assert shown(own.r_auroc["a"]) == "0.650"
    assert shown(own.spread) == "0.071"
    assert (shown(own.low), shown(own.high)) == ("0.550", "0.750")
    assert own.milliseconds == 1.5
    assert shown(own.nausc) == "–"


def test_groups_are_ranked_apart() -> None:
    listed = [
        Row("t", name, name, "s", group, r_auroc={"a": value})
        for name, group, value in (("x", IMAGE, 0.6), ("y", IMAGE, 0.7), ("z", GALLERY, 0.9))
    ]
    assert [row.rank for row in ranked(listed)] == [2.0, 1.0, 1.0]


def test_the_page_says_what_chose_and_what_was_not_run() -> None:
    html = leaderboard(
        results(), [Row("yours", "mine", "mine", "own", IMAGE, recall={"a": 0.3}, r_auroc={"a": 0.6})]
    ).html()
    for text in (
        "What chose the settings",
        "learning_rate 0.1",
        "Not run: HIB",
        "version 3",
        "Yours",
        ">123<",
    ):
        assert text in html
    assert "PFE <b>" not in html
    assert html.count("<figure>") == 2  # one for each group


def test_the_scatter_says_what_it_shows() -> None:
    picture = scatter(
        [Row("t", "x", "costs $1", "own", IMAGE, recall={"a": 0.3}, r_auroc={"a": 0.6})], "R@1 and R-AUROC"
    )
    assert "R@1 and R-AUROC" in picture.alt
