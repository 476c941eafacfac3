"""`Trust` as its users have it: answers, relevance, responses of any search, changes of the gallery, folders."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust import GaussianView, Trust
from laplacian_metric.trust.trust import Spaces
from tests.trust.conftest import Clusters, clusters


@pytest.fixture(scope="module")
def trust() -> Trust:
    some = clusters()
    return Trust.fit(some.gallery, some.queries)


def responses(some: Clusters, k: int = 30) -> tuple[Neighbours, np.ndarray]:
    """Return what a search returns to the validation queries, and whether each first item is right."""
    neighbours = ArrayGallery(*some.gallery).search(some.queries[0], k)
    return neighbours, np.asarray(neighbours.labels)[:, 0] == some.queries[1]


# --- answers ---


def test_probabilities_are_calibrated_and_rank(some: Clusters) -> None:
    many = clusters(seed=1, num=9000)
    trust = Trust.fit(
        (many.gallery[0][:500], many.gallery[1][:500]), (many.queries[0][:500], many.queries[1][:500])
    )
    answer = trust(many.test[0])
    right = np.asarray(answer.labels) == many.test[1]
    for low in (0.5, 0.7, 0.9):
        inside = (answer.probability >= low) & (answer.probability < low + 0.1)
        if inside.sum() > 100:
            assert right[inside].mean() == pytest.approx(answer.probability[inside].mean(), abs=0.08)
    assert right[answer.probability > 0.9].mean() > right.mean() + 0.03
    assert 0.02 < np.mean(answer.known < 1) < 0.1


def test_novel_queries_are_flagged(trust: Trust) -> None:
    far = np.zeros((20, 8))
    far[:, 6] = 1
    answer = trust(far + 0.05 * np.random.default_rng(0).standard_normal((20, 8)))
    assert (answer.known < 1).all()
    assert set(answer.verdict[answer.probability < 0.5]) <= {"unlike anything seen"}


def test_a_verdict_never_contradicts_the_probability(trust: Trust, some: Clusters) -> None:
    for changed in (trust, trust.accepting(0.8), trust.expecting(0.5), trust.expecting(None)):
        answer = changed(some.test[0])
        np.testing.assert_array_equal(answer.verdict == "accept", answer.probability >= changed.threshold)
        unlike = answer.verdict == "unlike anything seen"
        np.testing.assert_array_equal(unlike, (answer.probability < changed.threshold) & (answer.known < 1))


def test_reasons_have_weight(trust: Trust, some: Clusters) -> None:
    answer = trust(some.test[0])
    weights = {
        name for name, weight in trust.inputs.items() if isinstance(weight, float) and abs(weight) > 0.001
    }
    named = set(answer.because[answer.verdict != "unlike anything seen"])
    assert named <= weights
    assert set(answer.because[answer.verdict == "unlike anything seen"]) <= set(
        trust.calibration.novelty.tails
    )


def test_expected_ood_moves_the_ranking_and_keeps_the_calibration(trust: Trust, some: Clusters) -> None:
    novelty = trust(some.test[0]).novelty
    low, high = (trust.expecting(share)(some.test[0]).probability for share in (0.02, 0.4))
    most = np.argsort(novelty)[-20:]
    assert (high[most] <= low[most] + 0.05).all()
    error = trust.expecting(0.4).calibration_error
    assert error is not None
    assert error.value < 0.1


@pytest.mark.parametrize("kind", ["float32", "torch", "fortran", "mapped", "halves"])
def test_inputs_of_every_kind_give_the_same(trust: Trust, some: Clusters, kind: str, tmp_path: Path) -> None:
    def of_kind(h: np.ndarray) -> Any:
        h = h.astype(np.float32)
        if kind == "mapped":
            np.save(tmp_path / f"{len(list(tmp_path.iterdir()))}.npy", h)
            return np.load(sorted(tmp_path.iterdir())[-1], mmap_mode="r")
        makers: dict[str, Callable[[np.ndarray], Any]] = {
            "float32": np.asarray,
            "torch": torch.from_numpy,
            "fortran": np.asfortranarray,
            "halves": lambda x: x.astype(np.float16),
        }
        return makers[kind](h)

    other = Trust.fit(
        (of_kind(some.gallery[0]), some.gallery[1]), (of_kind(some.queries[0]), some.queries[1])
    )
    tolerance = 2e-2 if kind == "halves" else 1e-4
    np.testing.assert_allclose(
        other(of_kind(some.test[0])).probability, trust(some.test[0]).probability, atol=tolerance
    )


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e60, "f8"), (1e200, "f8"), (1e39, "f8"), (1e-200, "f8"), (1e-40, "f4")]
)
def test_lengths_do_not_matter(trust: Trust, some: Clusters, scale: float, dtype: str) -> None:
    h = (some.gallery[0] * scale).astype(dtype)
    near = trust.with_gallery(some.gallery[0], some.gallery[1])(some.test[0])
    far = trust.with_gallery(h, some.gallery[1])((some.test[0] * scale).astype(dtype))
    tolerance = 1e-2 if dtype == "f4" else 1e-7  # denormal numbers have few digits
    np.testing.assert_allclose(far.probability, near.probability, atol=tolerance)


@pytest.mark.parametrize("num", [5, 8, 11, 12])
def test_ties_in_small_galleries_go_by_id(num: int) -> None:
    generator = np.random.default_rng(num)
    h = np.repeat(generator.standard_normal((num, 4)), 2, axis=0)
    labels = np.arange(2 * num) % 3
    some = clusters()
    trust = Trust.fit((some.gallery[0][:, :4], some.gallery[1]), (some.queries[0][:, :4], some.queries[1]))
    one = trust.with_gallery(h, labels)(h[::2] + 0.1)
    other = trust.with_gallery(np.asfortranarray(h), labels)(np.asfortranarray(h[::2] + 0.1))
    np.testing.assert_array_equal(one.nearest, other.nearest)
    np.testing.assert_allclose(one.probability, other.probability, atol=1e-9)
    assert (one.nearest % 2 == 0).all()  # of two equal items the one with the smaller id


def test_a_head_maps_features_to_embeddings(some: Clusters) -> None:
    generator = np.random.default_rng(0)
    weight, bias = generator.standard_normal((5, 8)), generator.standard_normal(5)
    layer = torch.nn.Linear(8, 5)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    pair = Trust.fit(some.gallery, some.queries, encoder=(weight, bias))(some.test[0])
    of_layer = Trust.fit(some.gallery, some.queries, encoder=layer)(some.test[0])
    z = lambda h: h @ weight.T + bias  # noqa: E731
    spaces = ArrayGallery(z(some.gallery[0]), some.gallery[1]), ArrayGallery(*some.gallery)
    of_galleries = Trust.fit(spaces[0], some.queries, features=spaces[1], encoder=(weight, bias))(
        some.test[0]
    )
    nearest = ArrayGallery(z(some.gallery[0])).search(z(some.test[0]), 1).ids[:, 0]
    np.testing.assert_array_equal(pair.nearest, nearest)
    np.testing.assert_allclose(of_layer.probability, pair.probability, atol=1e-5)
    np.testing.assert_allclose(of_galleries.probability, pair.probability, atol=1e-5)


LABELS: dict[str, Callable[[np.ndarray], Any]] = {
    "texts": lambda y: [f"class {label}" for label in y],
    "tuples": lambda y: [("a", int(label)) for label in y],
    "tensors": torch.from_numpy,
    "bytes": lambda y: [bytes([label]) for label in y],
    "mixed": lambda y: [None if label == 3 else int(label) for label in y],
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_hashable_kind(some: Clusters, kind: str, tmp_path: Path) -> None:
    of = LABELS[kind]
    trust = Trust.fit((some.gallery[0], of(some.gallery[1])), (some.queries[0], of(some.queries[1])))
    trust.save(tmp_path / "trust")
    answer = Trust.load(tmp_path / "trust")(some.test[0])
    expected = Trust.fit(some.gallery, some.queries)(some.test[0])
    np.testing.assert_array_equal(answer.probability, trust(some.test[0]).probability)
    np.testing.assert_allclose(answer.probability, expected.probability, atol=1e-9)
    assert answer.labels is not None
    assert expected.labels is not None
    listed = of(expected.labels)
    assert answer.labels.tolist() == (listed.tolist() if kind == "tensors" else listed)


def test_the_vote_is_answered_where_it_is_right_more_often(some: Clusters) -> None:
    noisy = clusters(seed=3, noise=0.6)
    item = Trust.fit(noisy.gallery, noisy.queries)
    mean = Trust.fit(noisy.gallery, noisy.queries, answer="mean")
    vote = Trust.fit(noisy.gallery, noisy.queries, answer="vote")
    assert (mean.answered, vote.answered) == ("mean", "vote")
    rates = [np.mean(np.asarray(t(noisy.test[0]).labels) == noisy.test[1]) for t in (item, vote, mean)]
    assert min(rates[1:]) > rates[0]
    answer = mean(noisy.test[0])
    of_class = noisy.gallery[1][answer.nearest] == np.asarray(answer.labels)
    assert of_class.mean() > 0.95  # the nearest item of the answered class, where there is one


# --- relevance and responses of any search ---


def relevance(some: Clusters, kind: str) -> Any:
    """Return the gallery's items of each query's class as relevance judgements of a kind."""
    rows = [np.flatnonzero(some.gallery[1] == label) for label in some.queries[1]]
    if kind == "table":
        return some.queries[1][:, None] == some.gallery[1][None]
    return {"lists": [row.tolist() for row in rows], "sets": [frozenset(row.tolist()) for row in rows]}[kind]


@pytest.mark.parametrize("kind", ["table", "lists", "sets"])
def test_relevance_takes_the_place_of_labels(some: Clusters, kind: str) -> None:
    trust = Trust.fit((some.gallery[0], None), (some.queries[0], None), relevant=relevance(some, kind))
    _, right = responses(some, 50)
    assert trust.calibration.right.sum() == right.sum()
    assert set(trust.calibration.match.names) == {
        "distance",
        *(f"gap to neighbour {j}" for j in (2, 5, 10, 50)),
    }
    assert len(trust.calibration.novelty.tails) == 5
    answer = trust(some.test[0])
    assert answer.labels is None
    right = some.gallery[1][answer.nearest] == some.test[1]
    assert answer.probability[right].mean() > answer.probability[~right].mean() + 0.02
    other = trust.with_gallery(some.gallery[0])
    np.testing.assert_allclose(other(some.test[0]).probability, answer.probability)
    assert other.calibration_error is None


def test_queries_without_a_relevant_item_are_wrong_and_said(some: Clusters) -> None:
    relevant = relevance(some, "lists")
    relevant[0] = relevant[5] = []
    with pytest.warns(UserWarning, match="2 of 300"):
        trust = Trust.fit((some.gallery[0], None), (some.queries[0], None), relevant=relevant)
    assert not trust.calibration.right[[0, 5]].any()


def test_targets_of_several_items(some: Clusters) -> None:
    neighbours, _ = responses(some)
    flags = np.asarray(neighbours.labels) == some.queries[1][:, None]
    with pytest.raises(ValueError, match="right"):
        Trust.fit_responses(neighbours, flags[:, 0], target="each@10")
    each = Trust.fit_responses(neighbours, flags, target="each@10")
    assert each.calibration.right.sum() == flags[:, :10].any(axis=1).sum()
    test = ArrayGallery(*some.gallery).search(some.test[0], 30)
    answer = each(neighbours=test)
    assert answer.each is not None
    right = np.asarray(test.labels)[:, :10] == some.test[1][:, None]
    assert abs(answer.each.mean() - right.mean()) < 0.05
    for low in (0.3, 0.6, 0.8):
        inside = (answer.each >= low) & (answer.each < low + 0.2)
        if inside.sum() > 200:
            assert right[inside].mean() == pytest.approx(answer.each[inside].mean(), abs=0.1)
    np.testing.assert_allclose(answer.none, 1 - answer.probability)
    by_labels = Trust.fit(some.gallery, some.queries, target="any@5")
    assert (
        by_labels.calibration.right.mean() >= Trust.fit(some.gallery, some.queries).calibration.right.mean()
    )


def test_responses_give_what_the_gallery_gives(some: Clusters) -> None:
    neighbours, right = responses(some, 50)
    view = GaussianView.of(*some.gallery)
    trust = Trust.fit_responses(neighbours, right, features=some.queries[0], view=view)
    test = ArrayGallery(*some.gallery).search(some.test[0], 50)
    own = Trust.fit(some.gallery, some.queries)(some.test[0])
    answer = trust(neighbours=test, features=some.test[0])
    np.testing.assert_allclose(answer.probability, own.probability, atol=1e-9)
    with pytest.raises(ValueError, match="neighbours="):
        trust(some.test[0])
    light = Neighbours(neighbours.ids, neighbours.distances, neighbours.labels)
    without = Trust.fit_responses(light, right)
    assert "LOF in the features" not in without.calibration.novelty.tails
    assert str(without.inputs["LOF in the features"]).startswith("left out")
    assert str(without.inputs["posterior of the class"]).startswith("left out")


def test_the_callers_order_is_kept(some: Clusters) -> None:
    neighbours, _ = responses(some, 50)
    order = np.random.default_rng(0).permuted(np.tile(np.arange(50), (300, 1)), axis=1)
    ids, distances, labels = (
        np.take_along_axis(np.asarray(table), order, axis=1)
        for table in (neighbours.ids, neighbours.distances, neighbours.labels)
    )
    shuffled = Neighbours(ids, distances, labels)
    right = labels[:, 0] == some.queries[1]
    trust = Trust.fit_responses(shuffled, right)
    answer = trust(neighbours=shuffled)
    np.testing.assert_array_equal(answer.nearest, ids[:, 0])
    np.testing.assert_array_equal(answer.labels, labels[:, 0])
    np.testing.assert_allclose(answer.distance, distances[:, 0])
    sorted_novelty = Trust.fit_responses(neighbours, right)(neighbours=neighbours).novelty
    np.testing.assert_allclose(answer.novelty[0:0], sorted_novelty[0:0])
    assert np.corrcoef(answer.match, right)[0, 1] > 0.3


def test_further_scores_are_inputs(some: Clusters) -> None:
    neighbours, right = responses(some)
    scores = {"reranker": right + 0.3 * np.random.default_rng(0).standard_normal(len(right))}
    trust = Trust.fit_responses(neighbours, right, scores=scores, signs={"reranker": 1})
    assert float(trust.inputs["reranker"]) > 1
    answer = trust(neighbours=neighbours, scores=scores)
    plain = Trust.fit_responses(neighbours, right)(neighbours=neighbours)
    assert answer.probability[right].mean() > plain.probability[right].mean()
    with pytest.raises(ValueError, match="reranker"):
        trust(neighbours=neighbours)


def test_short_and_empty_responses_are_never_accepted(some: Clusters) -> None:
    neighbours, right = responses(some)
    trust = Trust.fit_responses(neighbours, right)
    distances = np.array(neighbours.distances[:3])
    distances[0] = np.inf
    distances[1, 1:] = np.inf
    labels, vectors = np.asarray(neighbours.labels)[:3], np.asarray(neighbours.vectors)[:3]
    answer = trust(neighbours=Neighbours(neighbours.ids[:3], distances, labels, vectors))
    assert np.isnan(answer.probability[:2]).all()
    assert answer.verdict[:2].tolist() == ["no reliable match"] * 2
    assert np.isfinite(answer.probability[2])
    assert not (answer.verdict == "accept")[np.isnan(answer.probability)].any()


# --- what cannot be calibrated ---


def test_exact_duplicates_are_left_out(some: Clusters) -> None:
    h, labels = some.queries[0].copy(), some.queries[1].copy()
    h[:6] = some.gallery[0][:6]
    labels[:6] = (some.gallery[1][:6] + 1) % 4  # wrongly labelled
    with pytest.warns(UserWarning, match="6 are duplicates"):
        spoilt = Trust.fit(some.gallery, (h, labels))
    clean = Trust.fit(some.gallery, (h[6:], labels[6:]))
    np.testing.assert_allclose(spoilt(some.test[0]).probability, clean(some.test[0]).probability, atol=1e-9)


def test_a_near_duplicate_with_a_wrong_label_moves_little(some: Clusters) -> None:
    h, labels = some.queries[0].copy(), some.queries[1].copy()
    h[:3] = some.gallery[0][:3] + 1e-3
    labels[:3] = (some.gallery[1][:3] + 1) % 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoilt = Trust.fit(some.gallery, (h, labels))(some.test[0])
    clean = Trust.fit(some.gallery, some.queries)(some.test[0])
    assert np.abs(spoilt.probability - clean.probability).mean() < 0.03


def test_an_influential_query_is_named() -> None:
    some = clusters()
    h, labels = some.queries[0][:60], some.queries[1][:60].copy()
    surest = int(Trust.fit(some.gallery, (h, labels))(h).probability.argmax())
    labels[surest] = (labels[surest] + 1) % 4
    with pytest.warns(UserWarning, match=str(surest)):
        Trust.fit(some.gallery, (h, labels))


BAD = [
    ({"gallery": (np.eye(3),)}, TypeError, "gallery"),
    ({"gallery": (np.full((30, 8), np.nan), np.arange(30))}, ValueError, "gallery_h"),
    ({"gallery": (np.zeros((30, 8)), np.arange(30))}, ValueError, "gallery_h"),
    ({"queries": (np.eye(8), np.arange(7))}, ValueError, "query_labels"),
    ({"queries": (np.eye(9), np.arange(9))}, ValueError, "query_h"),
    ({"queries": (np.ones((0, 8)), [])}, ValueError, "query_h"),
    ({"queries": (np.eye(8), np.arange(8))}, ValueError, "queries"),
    ({"queries": (np.ones((30, 8)), ["other"] * 30)}, ValueError, "queries"),
    ({"queries": (np.ones((30, 8)), "abc")}, TypeError, "query_labels"),
    ({"queries": (np.ones((30, 8)), [float("nan")] * 30)}, TypeError, "query_labels"),
    ({"queries": (np.ones((30, 8)), [(1, float("nan"))] * 30)}, TypeError, "query_labels"),
    ({"queries": (np.ones((30, 8)), None)}, ValueError, "right answers"),
    ({"alpha": 0.7}, ValueError, "alpha"),
    ({"expected_ood": 1.0}, ValueError, "expected_ood"),
    ({"target": "best"}, ValueError, "target"),
    ({"answer": "median"}, ValueError, "answer"),
    ({"encoder": object()}, TypeError, "encoder"),
    ({"encoder": (np.eye(3), None)}, ValueError, "encoder"),
    ({"relevant": np.ones((3, 3), bool)}, ValueError, "relevant"),
    ({"relevant": [1, 2]}, ValueError, "relevant"),
    ({"relevant": [{"id": 1}] * 300}, TypeError, "relevant"),
]


@pytest.mark.parametrize(("changed", "error", "named"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused(
    some: Clusters, changed: dict[str, Any], error: type[Exception], named: str
) -> None:
    arguments = {"gallery": some.gallery, "queries": some.queries, **changed}
    with pytest.raises(error, match=named):
        Trust.fit(arguments.pop("gallery"), arguments.pop("queries"), **arguments)


def test_bad_queries_and_changes_are_refused(trust: Trust, some: Clusters) -> None:
    for h in (np.ones((2, 7)), np.ones(8), np.full((1, 8), np.inf), np.zeros((1, 8)), np.ones((0, 8))):
        with pytest.raises(ValueError, match="h "):
            trust(h)
    for threshold in (0.0, float("nan")):
        with pytest.raises(ValueError, match="threshold"):
            trust.accepting(threshold)
    fresh = trust.with_gallery(*some.gallery)
    for remove, error in (
        ([1.5, 2.0], TypeError),
        (np.ones(3, bool), ValueError),
        ([-1], KeyError),
        ([999], KeyError),
    ):
        with pytest.raises(error):
            fresh.update(remove=remove)
    with pytest.raises(TypeError, match="labels"):
        fresh.update(add=(np.ones((1, 8)), ["text"]))
    with pytest.raises(ValueError, match="add or remove"):
        fresh.update()


# --- changes of the gallery ---


def test_a_mask_removes_its_items_and_ids_are_stable(some: Clusters) -> None:
    trust = Trust.fit(some.gallery, some.queries)
    mask = some.gallery[1] == 0
    trust.update(remove=mask)
    answer = trust(some.test[0])
    assert set(np.unique(answer.labels)) == {1, 2, 3}
    assert set(answer.nearest) <= set(np.flatnonzero(~mask))
    trust.update(add=(some.gallery[0][:1], [7]))
    assert trust(some.gallery[0][:1]).nearest[0] == 300
    trust.update(remove=[300])
    trust.update(add=(some.gallery[0][:1], [7]))
    assert trust(some.gallery[0][:1]).nearest[0] == 301  # an id is never used again
    trust.update(remove=[301])
    stricter = trust.accepting(0.8)
    stricter.update(add=(some.gallery[0][:1], [7]))
    assert stricter(some.gallery[0][:1]).nearest[0] == 302
    assert trust.spaces.gallery is not stricter.spaces.gallery  # the first is left alone
    assert trust.calibration_error is None
    assert trust.note


def test_with_gallery_measures_the_error_again(some: Clusters) -> None:
    trust = Trust.fit(some.gallery, some.queries)
    other = clusters(seed=9, noise=0.6)
    again = trust.with_gallery(
        np.concatenate([other.gallery[0], other.test[0]]), np.concatenate([other.gallery[1], other.test[1]])
    )
    assert again.calibration_error is not None
    assert again.calibration_error.items == 600
    small = trust.with_gallery(other.gallery[0][:12], other.gallery[1][:12])
    assert small.calibration_error is None
    assert small.note


class Changes(RuleBasedStateMachine):
    """Any sequence of additions and removals, then refresh, equals the gallery set at once."""

    @initialize()
    def begin(self) -> None:
        some = clusters(num=240)
        self.base, self.pool = Trust.fit(some.gallery, some.queries), clusters(seed=5)
        self.trust = self.base.with_gallery(*some.gallery)
        self.items = {row: (h, int(y)) for row, (h, y) in enumerate(zip(*some.gallery, strict=True))}
        self.next, self.test = len(self.items), some.test[0][:15]

    @rule(start=st.integers(0, 200), count=st.integers(1, 12))
    def add(self, start: int, count: int) -> None:
        h, labels = self.pool.gallery[0][start : start + count], self.pool.gallery[1][start : start + count]
        self.trust.update(add=(h, labels))
        for row, label in zip(h, labels, strict=True):
            self.items[self.next] = (row, int(label))
            self.next += 1

    @precondition(lambda self: len(self.items) > 60)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(sorted(self.items)), max_size=20, unique=True))
        self.trust.update(remove=np.array(gone, dtype=np.int64))
        for number in gone:
            del self.items[number]

    @invariant()
    def equals_the_gallery_set_at_once(self) -> None:
        if not hasattr(self, "items"):
            return
        self.trust.refresh()
        h = np.stack([h for h, _ in self.items.values()])
        gallery = ArrayGallery(h, [y for _, y in self.items.values()], list(self.items))
        spaces = Spaces(gallery, None, None, None).viewed()
        at_once = replace(self.trust, spaces=spaces)
        mine, other = self.trust(self.test), at_once(self.test)
        np.testing.assert_array_equal(mine.nearest, other.nearest)
        np.testing.assert_array_equal(mine.labels, other.labels)
        np.testing.assert_allclose(mine.probability, other.probability, atol=1e-6)


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=8, stateful_step_count=8, deadline=None)


def test_threads_see_one_gallery(some: Clusters) -> None:
    trust = Trust.fit((some.gallery[0], some.gallery[1] * 10), (some.queries[0], some.queries[1] * 10))
    labels_of = dict(enumerate((some.gallery[1] * 10).tolist()))
    mistakes, done = [], threading.Event()

    def ask() -> None:
        while not done.is_set():
            answer = trust(some.test[0][:4])
            for item, label, p in zip(answer.nearest, answer.labels, answer.probability, strict=True):
                if labels_of.get(int(item)) != int(label) or not np.isfinite(p):
                    mistakes.append((item, label, p))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(60):
        h = some.queries[0][step : step + 1]
        new = 300 + step
        labels_of[new] = step
        trust.update(add=(h, [step]))
        if step % 2:
            trust.update(remove=[new])
        if step % 10 == 0:
            trust.refresh()
    done.set()
    for thread in threads:
        thread.join()
    assert mistakes == []


# --- folders ---


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("target", ["top1", "each@5"])
def test_a_saved_trust_answers_the_same(some: Clusters, tmp_path: Path, head: bool, target: str) -> None:
    encoder = (np.eye(8)[:6], np.arange(6.0)) if head else None
    trust = Trust.fit(some.gallery, some.queries, encoder=encoder, target=target).accepting(0.7)
    trust.save(tmp_path / "trust")
    with pytest.raises(FileExistsError):
        trust.save(tmp_path / "trust")
    trust.save(tmp_path / "trust", overwrite=True)
    loaded = Trust.load(tmp_path / "trust")
    one, other = trust(some.test[0]), loaded(some.test[0])
    for name in ("probability", "match", "novelty", "known", "nearest", "verdict", "because", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert loaded.calibration_error == trust.calibration_error
    assert loaded.expecting(0.3).calibration.slope == trust.expecting(0.3).calibration.slope
    trust.update(remove=[299])
    trust.save(tmp_path / "trust", overwrite=True)
    assert Trust.load(tmp_path / "trust").next_id == 300


def test_a_label_that_cannot_be_saved_is_refused(some: Clusters, tmp_path: Path) -> None:
    kinds = [frozenset([int(label)]) for label in some.gallery[1]]
    trust = Trust.fit(
        (some.gallery[0], kinds), (some.queries[0], [frozenset([int(y)]) for y in some.queries[1]])
    )
    with pytest.raises(TypeError, match="labels"):
        trust.save(tmp_path / "trust")
    assert not (tmp_path / "trust" / "CURRENT").exists()
