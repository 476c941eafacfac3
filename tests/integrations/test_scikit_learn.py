"""LaplaceEmbedding: scikit-learn's own checks, and what it computes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, Trust, metrics
from laplacian_metric.integrations.scikit_learn import LaplaceEmbedding, TrustClassifier
from laplacian_metric.laplace.prior import NoOptimumError

ONE_COMPONENT = "the check sets n_components=1, which is refused: directions in one dimension are two points"
EXPECTED_FAILURES = dict.fromkeys(
    (
        "check_dont_overwrite_parameters",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_fit2d_1feature",
        "check_fit2d_predict1d",
    ),
    ONE_COMPONENT,
)

# A short training: the checks are about the interface.
SHORT = LaplaceEmbedding(max_iter=5, batch_size=64)


def expected_failures(estimator: Any) -> dict[str, str]:
    return EXPECTED_FAILURES if isinstance(estimator, LaplaceEmbedding) else {}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([SHORT, TrustClassifier()], expected_failed_checks=expected_failures)
def test_scikit_learn_s_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def clusters(classes: int = 4, each: int = 30, seed: int = 0) -> tuple[Any, Any]:
    """Features (N, 8) in clusters around the first axes, which lie in noise of the others; y are names."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), each)
    X = rng.normal(size=(len(y), 8)) * [1, 1, 1, 1, 12, 12, 12, 12]
    X[np.arange(len(y)), y] += 4
    return X, np.array([f"class {number}" for number in y])


def small_estimator(**options: Any) -> LaplaceEmbedding:
    return LaplaceEmbedding(**{"n_components": 3, "max_iter": 200, "random_state": 0, **options})


def test_what_expected_failures_check_with_enough_components() -> None:
    X, y = clusters()
    model = small_estimator(max_iter=20)
    before = dict(model.get_params())
    names = set(vars(model))
    model.fit(X, y)
    assert model.get_params() == before
    assert all(name.endswith("_") for name in set(vars(model)) - names if not name.startswith("_"))
    order = np.random.default_rng(0).permutation(len(X))
    for method in (model.transform, model.score_uncertainty, model.kappa):
        whole = method(X)
        np.testing.assert_allclose(method(X[order]), whole[order], rtol=1e-9)
        np.testing.assert_allclose(np.concatenate([method(X[:50]), method(X[50:])]), whole, rtol=1e-9)
        with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
            method(X[0])
    one = LaplaceEmbedding(max_iter=5, random_state=0).fit(X[:, :1], y)  # two components on one feature
    assert one.transform(X[:, :1]).shape == (len(X), 2)


def test_it_is_a_trained_head_with_a_posterior() -> None:
    X, y = clusters()
    model = small_estimator(prior_precision=2.0, temperature=3.0).fit(X, y)
    features = torch.tensor(X)
    lam = LAM(
        Encoder(nn.Identity(), model.encoder_.head),
        ContrastiveLoss(margin=0.7),
        temperature=3.0,
        prior_precision=2.0,
    ).fit_features(features, torch.tensor(np.unique(y, return_inverse=True)[1]), check_mode=False)
    e = lam.embed_features(features)
    np.testing.assert_allclose(model.transform(X), e.point.numpy(), rtol=1e-12)
    np.testing.assert_allclose(model.kappa(X), e.kappa.numpy(), rtol=1e-9)
    np.testing.assert_allclose(model.score_uncertainty(X), 1 / e.kappa.numpy(), rtol=1e-9)
    assert model.embed(X).variance.shape == (len(X), 3)
    np.testing.assert_allclose(np.linalg.norm(model.transform(X), axis=1), 1, rtol=1e-12)


def test_training_finds_the_classes_in_the_noise() -> None:
    X, y = clusters()
    X_test, y_test = clusters(seed=1)
    trained, labels = small_estimator().fit(X, y), torch.tensor(np.unique(y_test, return_inverse=True)[1])
    plain = metrics.recall_at_k(torch.nn.functional.normalize(torch.tensor(X_test), dim=1), labels)
    found = metrics.recall_at_k(torch.tensor(trained.transform(X_test)), labels)
    assert trained.score(X_test, y_test) == found > plain + 0.3


def test_between_two_classes_it_is_less_sure() -> None:
    X, y = clusters(classes=2, each=60)
    X[:, 4:] /= 12
    model = small_estimator(n_components=2).fit(X, y)
    means = np.stack([X[y == name].mean(0) for name in model.classes_])
    between = means.mean(0, keepdims=True)
    assert model.kappa(between)[0] < model.kappa(means).min()


@pytest.mark.parametrize("options", [{"init": "random"}, {"structure": "kron"}, {"prior_precision": 0.5}, {}])
def test_the_same_seed_gives_the_same_numbers(options: dict[str, Any]) -> None:
    X, y = clusters()
    first, again, other = (
        small_estimator(random_state=seed, max_iter=30, **options).fit(X, y) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.transform(X), again.transform(X))
    np.testing.assert_array_equal(first.kappa(X), again.kappa(X))
    assert not np.array_equal(first.transform(X), other.transform(X))
    state = np.random.RandomState(0)
    np.testing.assert_array_equal(
        small_estimator(random_state=state, max_iter=30, **options).fit(X, y).kappa(X), first.kappa(X)
    )


def test_the_dtype_is_that_of_the_layer() -> None:
    X, y = clusters()
    for dtype in (np.float32, np.float64):
        assert fit(X=X.astype(dtype), y=y).transform(X).dtype == dtype


def test_in_a_pipeline_and_a_grid_search() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, train_size=400, test_size=400, random_state=0)
    embedding = LaplaceEmbedding(max_iter=60, random_state=0)
    pipeline = make_pipeline(StandardScaler(), embedding, KNeighborsClassifier(1))
    search = GridSearchCV(pipeline, {"laplaceembedding__n_components": [2, 8]}, cv=2).fit(X, y)
    assert search.best_params_ == {"laplaceembedding__n_components": 8}
    assert search.score(X_test, y_test) > 0.85
    assert 0.5 < GridSearchCV(embedding, {"margin": [0.5, 0.9]}, cv=2).fit(X, y).best_score_ <= 1


def test_copies_and_names() -> None:
    model = fit()
    assert not hasattr(clone(model), "lam_")
    assert list(model.get_feature_names_out()) == [f"laplaceembedding{number}" for number in range(3)]
    assert fit(n_components=None).transform(clusters()[0]).shape == (120, 8)


def test_a_curvature_without_an_optimum_leaves_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: LAM) -> float:
        raise NoOptimumError("every entry of the curvature is 0")

    monkeypatch.setattr(LAM, "optimize_prior_precision", none)
    X, y = clusters()
    with pytest.warns(UserWarning, match="the prior precision stays at 1: every entry"):
        model = small_estimator(max_iter=5).fit(X, y)
    assert model.lam_.prior_precision == 1
    assert np.isfinite(model.kappa(X)).all()


def fit(estimator: type = LaplaceEmbedding, X: Any = None, y: Any = None, **options: Any) -> Any:
    """Fit an estimator to clusters, or to what is passed."""
    rows, names = clusters()
    short = {"max_iter": 5, "n_components": 3} if estimator is LaplaceEmbedding else {}
    return estimator(**{**short, **options}).fit(rows if X is None else X, names if y is None else y)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: fit(n_components=1), "n_components"),
        (lambda: fit(n_components=2.5), "n_components"),
        (lambda: fit(init="pca"), "init"),
        (lambda: fit(prior_precision="validation"), "prior_precision"),
        (lambda: fit(prior_precision=-1.0), "prior_precision"),
        (lambda: fit(max_iter=0), "steps"),
        (lambda: fit(structure="banded"), "structure"),
        (lambda: fit(y=np.zeros(120, dtype=int)), "labels"),
        (lambda: fit(y=clusters()[0][:, 0]), "continuous"),
        (lambda: fit(y=clusters()[1][1:]), "samples"),
        (lambda: fit().kappa(clusters()[0][:, 1:]), "X"),
        (lambda: fit().trust(clusters()[0]), "fit"),
        (lambda: fit(TrustClassifier, validation=1.0), "validation"),
        (lambda: fit(TrustClassifier, alpha=0.7), "alpha"),
        (lambda: fit(TrustClassifier, expected_ood=1.5), "expected_ood"),
        (lambda: fit(TrustClassifier, threshold=0.0), "threshold"),
    ],
)
def test_bad_inputs(call: Callable[[], Any], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):  # NotFittedError is one
        call()


def test_answers_over_a_gallery_can_be_trusted_as_trust_says() -> None:
    """The estimator's trust is that of its encoder; a fitted estimator can be pickled with it."""
    X, y = load_digits(return_X_y=True)
    names = np.array([f"digit {label}" for label in y])
    sets = (X[:900], names[:900]), (X[900:1400], names[900:1400])
    model = LaplaceEmbedding(n_components=6, max_iter=40, random_state=0).fit(*sets[0]).fit_trust(*sets)
    answer = pickle.loads(pickle.dumps(model)).trust(X[1400:])
    direct = Trust.fit(*sets, encoder=model.encoder_)(X[1400:])
    np.testing.assert_array_equal(answer.probability, direct.probability)
    assert roc_auc_score(answer.labels == names[1400:], answer.probability) > 0.7
    noise = model.trust(np.random.default_rng(0).uniform(0, 16, (50, X.shape[1])))
    assert (noise.verdict == "unlike anything seen").mean() > 0.9


def test_the_classifier_is_a_trust_over_rows_that_it_did_not_split_off() -> None:
    X, y = load_digits(return_X_y=True)
    names = np.array([f"digit {label}" for label in y])
    model = TrustClassifier(random_state=0, threshold=0.8).fit(X[:1200], names[:1200])
    new, right = X[1200:], names[1200:]
    answer = model.trust_(new)
    np.testing.assert_array_equal(model.predict(new), answer.labels)
    np.testing.assert_array_equal(model.probability(new), answer.probability)
    assert ((answer.probability >= 0.8) == (answer.verdict == "accept")).all()
    assert len(model.gallery_) == pytest.approx(840, abs=10)
    assert model.score(new, right) > 0.93
    accepted = answer.verdict == "accept"
    assert (model.predict(new) == right)[accepted].mean() > model.score(new, right)
    # No class is left without a row, and the split is that of the random state.
    assert set(model.gallery_.items.labels.tolist()) == set(names)
    again = TrustClassifier(random_state=0).fit(X[:1200], names[:1200])
    np.testing.assert_array_equal(again.probability(new), model.probability(new))


def test_a_classifier_of_few_rows_accepts_nothing() -> None:
    X, y = clusters(each=5)
    with pytest.warns(UserWarning, match="queries"):
        model = TrustClassifier().fit(X, y)
    assert (model.predict(X) == y).all()
    assert np.isnan(model.probability(X)).all()
    assert model.trust_ is None
