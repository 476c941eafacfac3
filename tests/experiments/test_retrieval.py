"""What refusing does, on embeddings whose answers are known, and the command from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import harness as runs
from experiments import retrieval
from experiments.harness.cell_fitting import is_trained
from experiments.refusal import embedded as embedding
from experiments.refusal.embedded import Embedded, embedded
from experiments.refusal.measures import (
    alarms,
    coverage,
    error_at,
    halves,
    matched,
    promise,
    rejection_curve,
    safe_errors,
    split_search,
)
from tests.experiments.harness.miniature import LAPLACE, folder_with
from tests.experiments.tables.synthetic import result, write

CLASSES, DIM = 5, 8


def embeddings(number: int = 1200, seed: int = 0, informed: bool = True) -> Embedded:
    """Images around their class's direction with the spread that kappa tells; or with a kappa that tells nothing."""
    generator = np.random.default_rng(seed)
    centres = np.eye(DIM)[:CLASSES]
    labels = np.arange(number) % CLASSES
    noise = generator.choice([0.1, 1.2], number)
    raw = centres[labels] + noise[:, None] * generator.normal(size=(number, DIM))
    point = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    kappa = 1 / noise**2 if informed else generator.uniform(1, 100, number)
    uncertainty = 1 / kappa
    ood = {"others": {"own": np.full(300, 20.0)}}
    return Embedded(point, point, kappa, labels, {"own": uncertainty}, ood, has_uncertainty=True)


def test_answers_are_those_of_a_plain_loop() -> None:
    e = embeddings(120)
    search = split_search(e)
    queries, gallery = halves(120)
    assert sorted([*queries, *gallery]) == list(range(120))
    for place, query in enumerate(queries):
        cosines = e.point[gallery] @ e.point[query]
        best = gallery[int(cosines.argmax())]
        assert search.wrong[place] == (e.labels[best] != e.labels[query])
        assert search.nearest[place, 0] == best
        mine = cosines[e.labels[gallery] == e.labels[query]]
        assert search.angle_to_right[place] == pytest.approx(np.arccos(np.clip(mine.max(), -1, 1)), abs=1e-3)
        assert (search.same[place] == (e.labels[search.nearest[place]] == e.labels[query])).all()


def test_a_class_without_items_is_never_reached() -> None:
    e = embeddings(120)
    queries, _ = halves(120)
    e.labels[queries[0]] = 99
    search = split_search(e)
    assert search.wrong[0]
    assert search.angle_to_right[0] == np.inf


def test_errors_fall_where_the_uncertainty_knows() -> None:
    uncertainty, wrong = np.arange(10.0), np.arange(10) >= 8
    assert [error_at(uncertainty, wrong, share) for share in (0, 0.1, 0.2)] == [0.2, pytest.approx(1 / 9), 0]
    curve = rejection_curve(uncertainty, wrong, np.array([0.0, 0.2, 0.9]))
    assert curve.tolist() == [0.2, 0, 0]
    # Equal uncertainties are refused at random and not in the order of the images.
    assert error_at(np.zeros(1000), np.arange(1000) >= 500, 0.5) == pytest.approx(0.5, abs=0.06)


def test_promises_are_kept_and_a_useless_uncertainty_gives_none() -> None:
    e = embeddings(2000)
    search = split_search(e)
    own = e.scores["own"][search.queries]
    kept = promise(own, search.wrong, alpha=0.05, delta=0.1, sets=60, seed=0, size=500)
    assert kept.broken <= 13  # of 60 at most one in ten may be, in expectation: more has probability 0.002
    assert kept.none == 0
    assert kept.error <= 0.05
    useless = np.random.default_rng(0).random(len(own))
    assert promise(useless, search.wrong, alpha=0.05, delta=0.1, sets=10, seed=0, size=500).none == 10


def test_sets_cover_as_promised_and_grow_with_doubt() -> None:
    e = embeddings()
    search = split_search(e)
    covered = coverage(e, search, e.kappa[search.queries], level=0.9, splits=20, seed=0)
    assert covered.coverage == pytest.approx(0.9, abs=0.02)
    assert covered.uncertain > covered.certain


def test_safe_retrieval() -> None:
    e = embeddings(2000)
    search = split_search(e)
    errors = safe_errors(e, search, e.scores["own"], 0.5, per_class=False)
    assert errors["both"] <= errors["queries refused"] < errors["all"]
    assert errors["items dropped"] < errors["all"]
    of_each = safe_errors(e, search, e.scores["own"], 0.5, per_class=True)
    assert of_each["both"] < of_each["all"] == errors["all"]
    nothing = safe_errors(e, search, e.scores["own"], 0.0, per_class=True)
    assert len(set(nothing.values())) == 1


def test_kappa_makes_match_probabilities_better_where_it_knows() -> None:
    e = embeddings(3000)
    search = split_search(e)
    assert matched(e, search, e.kappa).loss < matched(e, search, None).loss
    assert matched(e, search, e.kappa).error < 0.06


def test_alarms_come_for_ood_only() -> None:
    kappa = np.random.default_rng(0).gamma(5, 20, 2000)
    none = alarms(kappa, None, 0.0, streams=20, length=300, false_alarm=0.01, seed=0)
    assert none.raised <= 2
    some = alarms(kappa, np.full(50, 0.1), 0.5, streams=10, length=300, false_alarm=0.01, seed=0)
    assert some.raised == 10
    assert some.median is not None
    assert some.median < 60


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    for cell in ("one", "two"):
        for seed in (0, 1):
            write(results, result(f"set/{cell}", seed))
    described = tmp_path / "described.yaml"
    described.write_text(
        "sets:\n  set:\n    title: A set\n    seeds: [0, 1, 2]\n    alphas: [0.2]\n    ood: others\n    rows:\n"
        "      - {label: first, cell: set/one}\n      - {label: second, cell: set/two}\n"
        "      - {label: missing, cell: set/three}\n"
    )
    asked_for = []

    def stand_in(cell: str, seed: int, **places: Any) -> Embedded:
        asked_for.append((cell, seed))
        return embeddings(600, seed, informed=cell == "set/one")

    monkeypatch.setattr(retrieval, "embedded", stand_in)
    monkeypatch.setattr("experiments.refusal.tables.DRAWS", 5)
    monkeypatch.setattr("experiments.refusal.tables.STREAMS", 2)
    places = ["--work", str(tmp_path), "--results", str(results), "--out", str(tmp_path / "out")]
    retrieval.main([*places, "--described", str(described)])
    assert asked_for == [("set/one", 0), ("set/one", 1), ("set/two", 0), ("set/two", 1)]
    asked_for.clear()
    retrieval.main([*places, "--described", str(described), "--seeds", "1"])
    assert asked_for == [("set/one", 1), ("set/two", 1)]
    with pytest.raises(SystemExit, match="has no result of a cell"):  # nor a network
        retrieval.main([*places, "--described", str(described), "--trained"])
    out = tmp_path / "out"
    rows = json.loads((out / "retrieval_refusal.json").read_text())["rows"]
    assert [row["uncertainty"] for row in rows] == ["first", "second"]
    assert float(rows[0]["mean over all shares"].split()[0]) < float(
        rows[1]["mean over all shares"].split()[0]
    )
    for name in ("safe", "promise", "credible", "matching", "drift"):
        assert json.loads((out / f"retrieval_{name}.json").read_text())["rows"]
        assert "| first |" in (out / f"retrieval_{name}.md").read_text() or name == "credible"
    for name in ("refusal", "matching"):
        assert (out / "plots" / f"retrieval_{name}.png").read_bytes().startswith(b"\x89PNG")
    # Without a method's own uncertainty there is less to show.
    trivial = described.read_text().replace("label: first,", "label: first, score: feature norm,")
    described.write_text(trivial.replace("label: second,", "label: second, score: feature norm,"))

    def without(cell: str, seed: int, **places: Any) -> Embedded:
        whole = embeddings(600, seed)
        scores, ood = {"feature norm": whole.scores["own"]}, {"others": {"feature norm": np.ones(300)}}
        return replace(whole, scores=scores, ood=ood, has_uncertainty=False)

    monkeypatch.setattr(retrieval, "embedded", without)
    retrieval.main([*places, "--described", str(described), "--out", str(tmp_path / "trivial")])
    assert (tmp_path / "trivial" / "retrieval_refusal.json").exists()
    assert not (tmp_path / "trivial" / "retrieval_matching.json").exists()
    assert "retrieval_matching: no result that is asked for has what it shows" in capsys.readouterr().out
    described.write_text(described.read_text().replace("set/one", "set/four").replace("set/two", "set/five"))
    with pytest.raises(SystemExit, match="has no result of a cell"):
        retrieval.main([*places, "--described", str(described)])


def test_embeddings_are_kept_for_the_same_cell_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    assert folder.run().ok
    places: Any = {"cells_dir": folder.cells, "work": folder.work, "data": None}
    network = {"cells_dir": folder.cells, "work": folder.work}
    assert is_trained("mini/laplace", 0, **network)
    assert is_trained("mini/deterministic", 0, **network)
    assert not is_trained("mini/laplace", 1, **network)
    assert not is_trained("mini/other", 0, **network)
    first = embedded("mini/laplace", 0, **places)
    cell = runs.fitted("mini/laplace", 0, cells_dir=folder.cells, work=folder.work)
    e = cell.embedder.embed(cell.sets["test"])
    np.testing.assert_allclose(first.point, e.point.numpy())
    np.testing.assert_allclose(first.scores["own"], e.uncertainty.numpy())
    assert first.ood["digits"]["own"].shape == (30,)
    assert first.has_uncertainty
    trivial = embedded("mini/deterministic", 0, **places)
    assert set(trivial.scores) == {"feature norm", "embedding norm", "nearest distance"}
    assert not trivial.has_uncertainty

    fitted: list[str] = []
    anew = embedding._embed

    def counted(name: str, *rest: Any) -> Any:
        fitted.append(name)
        return anew(name, *rest)

    monkeypatch.setattr(embedding, "_embed", counted)
    again = embedded("mini/laplace", 0, **places)
    assert fitted == []
    np.testing.assert_array_equal(again.kappa, first.kappa)
    folder.write("mini/laplace", {**LAPLACE, "method": {"name": "laplace", "prior": 50.0}})
    other = embedded("mini/laplace", 0, **places)
    assert fitted == ["mini/laplace"]
    assert (other.kappa != first.kappa).any()
    monkeypatch.setattr(embedding, "sources", lambda: "another version")
    embedded("mini/laplace", 0, **places)
    assert fitted == ["mini/laplace"] * 2
