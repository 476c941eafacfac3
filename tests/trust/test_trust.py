"""`Trust` as users meet it: what it refuses, extremes, files, engines, and galleries that change."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

from laplacian_metric import Encoder, Trust, metrics
from laplacian_metric.core.labelled_gallery import LabelledGallery
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.data import load

REASONS = {"trusted", "unlike anything seen", "no reliable match"}


def clouds(num: int, seed: int, *, classes: int = 6, width: int = 12, spread: float = 0.45):
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((classes, width))
    labels = generator.integers(0, classes, num)
    return (centers[labels] + spread * generator.standard_normal((num, width)) * 2).astype(np.float32), labels


def encoder(width: int = 12, dim: int = 5) -> Encoder:
    torch.manual_seed(0)
    return Encoder(torch.nn.Identity(), torch.nn.Linear(width, dim))


@pytest.fixture(scope="module")
def fitted() -> Trust:
    return Trust.fit(clouds(400, 0), clouds(300, 1), encoder=encoder())


def same_answers(first, second) -> bool:
    names = (
        "probability",
        "match",
        "known",
        "novelty",
        "nearest",
        "distance",
        "reason",
        "because",
        "novelty_parts",
    )
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


def test_an_answer_has_a_value_for_every_query(fitted: Trust) -> None:
    answer = fitted(clouds(200, 2)[0])
    assert len(answer) == 200
    assert len(answer.labels) == 200
    for name in ("probability", "match", "known", "novelty", "nearest", "distance", "reason", "because"):
        assert getattr(answer, name).shape == (200,)
    for values in (answer.probability, answer.match, answer.known):
        assert values.min() >= 0
        assert values.max() <= 1
    assert set(answer.reason) <= REASONS
    assert (answer.reason == "unlike anything seen").tolist() == (answer.known < 1).tolist()
    unreliable = (answer.known == 1) & (answer.match < 0.5)
    assert (answer.reason == "no reliable match").tolist() == unreliable.tolist()
    np.testing.assert_allclose(answer.novelty_parts.sum(1), answer.novelty)


def test_the_nearest_item_is_that_of_the_embedding(fitted: Trust) -> None:
    h, _ = clouds(50, 2)
    z = encoder()(torch.from_numpy(h)).detach()
    items = encoder()(torch.from_numpy(clouds(400, 0)[0])).detach()
    assert fitted(h).nearest.tolist() == (z @ items.T).argmax(1).tolist()


def test_wrong_and_strange_queries_are_trusted_less(fitted: Trust) -> None:
    h, labels = clouds(1000, 3)
    answer = fitted(h)
    right = np.array(answer.labels) == labels
    assert answer.probability[right].mean() > answer.probability[~right].mean() + 0.2
    strange = fitted(np.random.default_rng(0).standard_normal((200, 12)) * 10)
    assert np.median(strange.novelty) > np.quantile(answer.novelty, 0.9)
    assert strange.probability.mean() < answer.probability.mean()


def test_numpy_torch_mapped_and_string_labels_agree(tmp_path: Path, fitted: Trust) -> None:
    (h, labels), (q, q_labels) = clouds(400, 0), clouds(300, 1)
    queries = clouds(60, 2)[0]
    expected = fitted(queries)
    as_torch = Trust.fit(
        (torch.from_numpy(h), torch.from_numpy(labels)),
        (torch.from_numpy(q), q_labels.tolist()),
        encoder=encoder(),
    )
    assert same_answers(expected, as_torch(torch.from_numpy(queries)))
    np.save(tmp_path / "h.npy", h)
    mapped = np.load(tmp_path / "h.npy", mmap_mode="r")
    names = np.array(["cat", "dog", "owl", "fox", "bee", "ant"])
    as_mapped = Trust.fit((mapped, names[labels]), (q, names[q_labels]), encoder=encoder())
    assert isinstance(as_mapped.gallery.features.rows, np.memmap)
    answer = as_mapped(queries)
    assert same_answers(expected, answer)
    assert answer.labels == [str(names[label]) for label in expected.labels]
    tuples = [("class", int(label)) for label in labels]
    as_tuples = Trust.fit((h, tuples), (q, [("class", int(label)) for label in q_labels]), encoder=encoder())
    assert as_tuples(queries).labels == [("class", label) for label in expected.labels]


def test_lam_in_place_of_its_encoder(fitted: Trust) -> None:
    class Posterior:
        encoder = encoder()

    other = Trust.fit(clouds(400, 0), clouds(300, 1), lam=Posterior())
    assert same_answers(fitted(clouds(20, 2)[0]), other(clouds(20, 2)[0]))


def test_a_half_precision_gallery_answers_alike(fitted: Trust) -> None:
    (h, labels), queries = clouds(400, 0), clouds(200, 2)[0]
    half = Trust.fit((h.astype(np.float16), labels), clouds(300, 1), encoder=encoder())
    assert half.gallery.features.rows.dtype == np.float16
    difference = np.abs(half(queries).probability - fitted(queries).probability)
    assert np.median(difference) < 0.01


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("with_encoder", [True, False])
@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_saved_and_loaded_it_answers_bit_for_bit(
    tmp_path: Path, labelled: bool, with_encoder: bool, mmap: bool, training: bool
) -> None:
    (h, labels), queries = clouds(300, 0), clouds(200, 1)
    trust = Trust.fit(
        (h, labels if labelled else None),
        queries,
        encoder=encoder() if with_encoder else None,
        training_h=clouds(200, 3)[0] if training else None,
    )
    before = trust(clouds(40, 2)[0])
    trust.save(tmp_path / "trust")
    again = Trust.load(tmp_path / "trust", mmap=mmap)
    after = again(clouds(40, 2)[0])
    assert np.array_equal(before.novelty, after.novelty)
    assert np.array_equal(before.known, after.known)
    assert before.reason.tolist() == after.reason.tolist()
    if labelled:
        assert same_answers(before, after)
        assert before.labels == after.labels
        assert again.calibration_error == trust.calibration_error


def test_labels_that_no_file_holds_are_refused(tmp_path: Path) -> None:
    class Name:
        pass

    names = [Name() for _ in range(6)]
    h, labels = clouds(200, 0)
    q, q_labels = clouds(200, 1)
    trust = Trust.fit((h, [names[i] for i in labels]), (q, [names[i] for i in q_labels]))
    assert trust(q).labels[0] in names
    with pytest.raises(TypeError, match="use texts, numbers or tuples"):
        trust.save(tmp_path / "trust")


def test_the_neighbours_of_faiss_give_the_same_answers(fitted: Trust) -> None:
    query_rows = clouds(80, 2)[0]
    probabilities = []
    for vectors, rows, k in (
        (fitted.gallery.embeddings, fitted.head.embed(query_rows).rows, 60),
        (fitted.gallery.features, query_rows, 12),
    ):
        unit = vectors.unit(slice(None)).astype(np.float32)
        queries = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines, ids = faiss.knn(queries.astype(np.float32), unit, k, metric=faiss.METRIC_INNER_PRODUCT)
        probabilities.append(Neighbours.from_cosines(ids, cosines))
    answer = fitted(query_rows, neighbours=probabilities[0], feature_neighbours=probabilities[1])
    assert same_answers(fitted(query_rows), answer)
    with pytest.raises(ValueError, match="the 50 nearest of 80 queries are needed"):
        fitted(query_rows, neighbours=Neighbours(ids[:, :5], np.zeros((80, 5))))


def test_torch_is_not_loaded_to_answer(tmp_path: Path, fitted: Trust, root: Path) -> None:
    fitted.save(tmp_path / "trust")
    np.save(tmp_path / "h.npy", clouds(5, 2)[0])
    code = (
        "import sys, numpy; from laplacian_metric import Trust; trust = Trust.load('trust'); "
        "print(trust(numpy.load('h.npy')).probability.shape); "
        "print([m for m in ('torch', 'faiss', 'scipy') if m in sys.modules])"
    )
    environment = {"PYTHONPATH": str(root), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n")[:2] == ["(5,)", "[]"]


# --- extremes ---


@pytest.mark.parametrize("items", [1, 2, 5, 12, 49])
def test_a_gallery_smaller_than_k(items: int) -> None:
    h, _ = clouds(items, 0)
    labels = np.arange(items) % 2
    q, q_labels = clouds(100, 1)
    trust = Trust.fit((h, labels), (q, q_labels % 2))
    assert np.isfinite(trust(clouds(30, 2)[0]).probability).all()


def test_one_class_in_the_gallery() -> None:
    h, labels = clouds(300, 0)
    q, q_labels = clouds(200, 1)
    with pytest.warns(UserWarning, match="classes that the gallery does not have"):
        trust = Trust.fit((h[labels == 0], labels[labels == 0]), (q, q_labels))
    assert np.isfinite(trust(q).probability).all()


def test_duplicates_and_a_query_that_is_an_item(fitted: Trust) -> None:
    h, labels = clouds(400, 0)
    doubled = Trust.fit((np.concatenate([h, h]), np.concatenate([labels, labels])), clouds(300, 1))
    for trust in (doubled, fitted):
        answer = trust(h[:20])
        assert answer.nearest.tolist() == list(range(20))
        assert answer.distance.max() < 1e-9
        assert np.isfinite(answer.probability).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: np.where(np.arange(12) == 3, np.nan, h), "h has NaN or infinity"),
        (lambda h: h * 0, "h is zero"),
        (lambda h: h[:, :5], "h has 5 columns, the gallery has 12"),
        (lambda h: h[0], "h has shape"),
        (lambda h: h[:0], "h has shape"),
    ],
)
def test_bad_queries_are_named(fitted: Trust, change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(change(clouds(5, 2)[0]))


def test_one_validation_query_is_too_few() -> None:
    q, labels = clouds(1, 1)
    with pytest.raises(ValueError, match="at least 50 are needed: 49 are missing"):
        Trust.fit(clouds(100, 0), (q, labels))


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_all_right_and_all_wrong_are_refused(kind: str) -> None:
    h, labels = clouds(300, 0, spread=0.01)
    q, q_labels = clouds(100, 1, spread=0.01)
    missing = {"right": "wrong", "wrong": "right"}[kind]
    answers = q_labels if kind == "right" else (q_labels + 1) % 6
    with pytest.raises(ValueError, match=f"nearest items of the validation queries is {missing}"):
        Trust.fit((h, labels), (q, answers))


def test_validation_rows_that_are_items_are_refused() -> None:
    h, labels = clouds(300, 0)
    with pytest.raises(ValueError, match="100 of 100 validation queries are rows of the gallery"):
        Trust.fit((h, labels), (h[:100], labels[:100]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"alpha": 0.0}, ValueError, "alpha is 0.0"),
        ({"encoder": encoder(), "lam": encoder()}, ValueError, "encoder and lam"),
        ({"encoder": "resnet"}, TypeError, "encoder is a str without a linear head"),
        ({"training_h": np.ones((3, 4))}, ValueError, "training_h has 4 columns"),
        ({"encoder": encoder(7)}, ValueError, "h has 12 columns, the encoder's head takes 7"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message: str) -> None:
    with pytest.raises(error, match=message):
        Trust.fit(clouds(200, 0), clouds(100, 1), **arguments)


def test_labels_have_to_fit() -> None:
    h, labels = clouds(200, 0)
    with pytest.raises(ValueError, match="gallery_labels has 199 entries for 200 rows"):
        Trust.fit((h, labels[1:]), clouds(100, 1))
    with pytest.raises(TypeError, match="hashable"):
        Trust.fit((h, [[int(label)] for label in labels]), clouds(100, 1))
    with pytest.raises(ValueError, match="queries have no labels"):
        Trust.fit((h, labels), (clouds(100, 1)[0], None))
    with pytest.raises(TypeError, match="pass a pair of features"):
        Trust.fit(h, clouds(100, 1))


# --- without validation queries, without labels ---


def test_leaving_one_out_asks_what_trained_the_head() -> None:
    gallery = clouds(400, 0)
    with pytest.raises(ValueError, match="gallery_trained_head= has to be answered"):
        Trust.fit(gallery, None)
    with pytest.raises(ValueError, match="would trust too much"):
        Trust.fit(gallery, None, gallery_trained_head=True)
    with pytest.raises(ValueError, match="at least 50"):
        Trust.fit(clouds(40, 0), None, gallery_trained_head=False)
    trust = Trust.fit(gallery, None, gallery_trained_head=False, encoder=encoder())
    h, labels = clouds(2000, 3)
    answer = trust(h)
    right = np.array(answer.labels) == labels
    assert abs(answer.probability.mean() - right.mean()) < 0.05
    assert 0.01 <= (answer.known < 1).mean() <= 0.1


def test_without_labels_there_is_no_probability() -> None:
    (h, _), queries = clouds(400, 0), clouds(300, 1)
    trust = Trust.fit((h, None), queries)
    answer = trust(clouds(500, 2)[0])
    assert 0.01 <= (answer.known < 1).mean() <= 0.1
    assert set(answer.reason) == {"known", "unlike anything seen"}
    assert answer.labels is None
    for name in ("probability", "match"):
        with pytest.raises(ValueError, match="without labels of the gallery there is no probability"):
            getattr(answer, name)


# --- galleries that change ---


def test_items_that_come_and_go_leave_no_trace(fitted: Trust) -> None:
    (h, labels), more, queries = clouds(400, 0), clouds(60, 7), clouds(80, 2)[0]
    trust = Trust.fit((h, labels), clouds(300, 1), encoder=encoder())
    trust.store_scales()
    gone = np.array([0, 5, 17, 399])
    trust.update(add=more, remove=gone)
    fresh_gallery = LabelledGallery.of(
        np.concatenate([np.delete(h, gone, 0), more[0]]),
        np.concatenate([np.delete(labels, gone), more[1]]),
        trust.head,
    )
    for space in ("h", "z"):
        has_scale = ~np.isnan(trust.gallery.scales[space][:, 0])
        assert 50 < has_scale.sum() < len(has_scale)  # some were kept, those that changed were not
        every = np.arange(len(fresh_gallery))
        expected = fresh_gallery.reached_scales(space, every)
        np.testing.assert_allclose(
            trust.gallery.scales[space][has_scale], expected[has_scale], rtol=1e-9, atol=1e-12
        )
    answer = trust(queries)
    trust.gallery = fresh_gallery
    fresh = trust(queries)
    np.testing.assert_allclose(answer.probability, fresh.probability, rtol=1e-9)
    assert answer.labels == fresh.labels


def test_what_cannot_be_updated_is_refused(fitted: Trust) -> None:
    trust = Trust.fit(clouds(60, 0), clouds(100, 1))
    for arguments, error, message in (
        ({}, ValueError, "add or remove is needed"),
        ({"remove": [60]}, IndexError, "remove names row 60 of a gallery of 60"),
        ({"remove": range(60)}, ValueError, "remove names all 60 items"),
        ({"add": (clouds(3, 5)[0][:, :4], [0, 1, 2])}, ValueError, "add has 4 columns, the gallery has 12"),
        ({"add": (clouds(3, 5)[0], None)}, ValueError, "add needs labels"),
    ):
        with pytest.raises(error, match=message):
            trust.update(**arguments)
    assert len(trust.gallery) == 60


def test_large_batches_are_answered_in_parts(fitted: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = clouds(100, 2)[0]
    expected = fitted(queries)
    monkeypatch.setattr("laplacian_metric.trust.trust.QUERIES_AT_ONCE", 33)
    answer = fitted(queries)
    np.testing.assert_allclose(answer.probability, expected.probability, rtol=1e-6)
    assert answer.labels == expected.labels


@pytest.mark.statistical
def test_another_gallery_of_real_images_flags_few_known_queries() -> None:
    """Fitted on five classes of FashionMNIST and then used with the five others, it flags 1 to 10 % of new queries."""
    train, test = load("sample-fashion-mnist", "train+validation"), load("sample-fashion-mnist", "test")
    h, labels = train.floats().flatten(1).numpy(), train.labels.numpy()
    q, q_labels = test.floats().flatten(1).numpy(), test.labels.numpy()
    first, first_q = labels < 5, q_labels < 5
    trust = Trust.fit((h[first], labels[first]), (q[first_q], q_labels[first_q]))
    other = trust.with_gallery(h[~first], labels[~first])
    answer = other(q[~first_q])
    assert 0.01 <= (answer.known < 1).mean() <= 0.1
    right = np.array(answer.labels) == q_labels[~first_q]
    assert answer.probability[right].mean() > answer.probability[~right].mean() + 0.1
    assert len(trust.gallery) == first.sum()
    with pytest.raises(ValueError, match="labels: a gallery with labels is needed"):
        trust.with_gallery(h)


def test_an_item_is_answered_as_a_query_of_the_others_is() -> None:
    generator = np.random.default_rng(3)
    labels = np.arange(240) % 4
    h = np.eye(6)[labels] + 0.4 * generator.standard_normal((240, 6))
    trust = Trust.fit((h[:120], labels[:120]), (h[120:], labels[120:])).with_gallery(h[120:], labels[120:])
    answer = trust.items()
    scores = metrics.trivial_scores((h[120:], labels[120:]))
    for row in (0, 7, 119):
        others = replace(trust, gallery=trust.gallery.updated(remove=[row]))
        alone = others(h[120 + row][None])
        assert answer.nearest[row] == alone.nearest[0] + (alone.nearest[0] >= row)
        for name in ("probability", "match", "known", "novelty", "distance"):
            np.testing.assert_allclose(getattr(answer, name)[row], getattr(alone, name)[0], rtol=1e-5)
        keep = np.arange(120) != row
        expected = metrics.trivial_scores((h[120:][keep], labels[120:][keep]), h[120 + row][None])
        for name in ("gallery distance", "margin", "LOF", "vote", "kernel vote"):
            assert float(scores[name][row]) == pytest.approx(float(expected[name][0]), rel=1e-5), name
