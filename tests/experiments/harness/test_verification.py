"""What is measured of pairs and neighbours, beside plain loops, scikit-learn and scipy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from experiments.harness.cell_fitting import Fitted
from experiments.harness.image_sets import Sets
from experiments.harness.sections import VerificationSection
from experiments.harness.verification import (
    distances,
    falling,
    kendall_tau,
    pair_average_precision,
    vote,
)
from experiments.harness.verified_pairs import Hedged, mismatch_probability, verify
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder
from laplacian_metric.core.search import best_by_score
from laplacian_metric.data import Dataset, Split
from laplacian_metric.methods.gaussian.match_probability import MatchProbability, match_probability
from laplacian_metric.training.pair_streams import balanced_pairs, random_pairs

NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=25)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_kendalls_tau_is_that_of_scipy(data: st.DataObject) -> None:
    first = data.draw(NUMBERS)
    second = data.draw(st.lists(st.integers(-3, 3), min_size=len(first), max_size=len(first)))
    correlation = kendall_tau(torch.tensor(first).double(), torch.tensor(second).double())
    expected = stats.kendalltau(first, second).statistic
    assert correlation == pytest.approx(expected, nan_ok=True, abs=1e-12)


def test_kendalls_tau_by_hand_and_where_there_is_none() -> None:
    # Of six pairs five are in order and one is not.
    assert kendall_tau(torch.arange(4.0), torch.tensor([1.0, 2.0, 4.0, 3.0])) == pytest.approx(4 / 6)
    assert falling([0.9, 0.8, 0.85, 0.1]) == pytest.approx(4 / 6)
    # A bin without a number is left out.
    assert falling([0.9, math.nan, 0.85, 0.1]) == falling([0.9, 0.85, 0.1]) == 1.0
    with pytest.raises(ValueError, match="two of one length are needed"):
        kendall_tau(torch.zeros(2), torch.zeros(3))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_average_precision_is_that_of_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    scores, matching = (torch.tensor(column) for column in zip(*rows, strict=True))
    precision = pair_average_precision(scores.double(), matching.bool())
    if not any(match for _, match in rows):
        assert math.isnan(precision)
        return
    assert precision == pytest.approx(average_precision_score(matching.numpy(), scores.numpy()))


# --- neighbours ---


def points(number: int = 60, dim: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_vote_is_that_of_scikit_learn(dim: int) -> None:
    z, labels = points(300, dim), torch.arange(300) % 4
    gallery, queries = z[:200], z[200:]
    members, _ = best_by_score(lambda rows: -distances(queries[rows], gallery), 100, 200, 5)
    actual = vote(labels[members])
    model = KNeighborsClassifier(5).fit(gallery.numpy(), labels[:200].numpy())
    expected = torch.from_numpy(model.predict(queries.numpy()))
    votes = torch.nn.functional.one_hot(labels[members], 4).sum(1).sort(1, descending=True).values
    clear = votes[:, 0] > votes[:, 1]
    assert 50 < int(clear.sum()) < 100
    assert torch.equal(actual[clear], expected[clear])
    # Of classes with as many votes, the one whose member is nearest.
    for row in (~clear).nonzero().flatten().tolist():
        most = int(votes[row, 0])
        tied = [label for label in range(4) if int((labels[members[row]] == label).sum()) == most]
        first = next(int(label) for label in labels[members[row]] if int(label) in tied)
        assert int(actual[row]) == first


NUMBER, CLASSES = 120, 6
SECTION = VerificationSection(
    pairs=200,
    random_pairs=2000,
    neighbours=5,
    bins=8,
    samples=4,
    repeats=3,
    drawn=10,
    galleries={"noisy": "test"},
)


class Clouds(Embedder):
    """Gaussians around the first two numbers of an input; the third is the logarithm of their variance."""

    match = MatchProbability(2.0, 1.5)

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        raise NotImplementedError

    def mixtures(self, inputs: Any) -> tuple[Tensor, Tensor]:
        rows = torch.cat([batch.inputs for batch in inputs.batches()])
        return rows[:, None, :2], rows[:, None, 2:].expand(-1, 1, 2)

    def drawn(
        self, mixtures: tuple[Tensor, Tensor], samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        means, log_variances = mixtures
        noise = torch.randn(samples, len(means), 2, generator=generator)
        return means[:, 0] + (0.5 * log_variances[:, 0]).exp() * noise


class Points(Embedder):
    """Directions of the first two numbers of an input, unsure by the third."""

    own = False

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        z = nn.functional.normalize(inputs[:, :2])
        return StochasticEmbedding(z, z, torch.ones(len(z)), inputs[:, 2].exp())

    def similarity(self, queries: StochasticEmbedding, gallery: StochasticEmbedding) -> Tensor | None:
        return queries.point @ gallery.point.T * 3 if self.own else None


def noisy_sets(turned: bool = False) -> Sets:
    """The same images twice, the second time noisier."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(NUMBER) % CLASSES
    angle = 2 * math.pi * torch.arange(CLASSES) / CLASSES
    centres = 2 * torch.stack([angle.cos(), angle.sin()], dim=1)
    sets = {}
    for name, spread in (("test", 0.4), ("test/noisy", 1.0)):
        log_variance = torch.rand(NUMBER, 1, generator=generator) * 4 - 4
        noise = torch.randn(NUMBER, 2, generator=generator) * (0.5 * log_variance).exp()
        rows = torch.cat([centres[labels] + spread * noise, log_variance], dim=1)
        said = labels.flip(0) if turned and name != "test" else labels
        sets[name] = Dataset(rows, said, batch_size=50, split=Split.TEST)
    return Sets(sets, sets.__getitem__)


def measured(embedder: Embedder, *, sets: Any = None, uncertain: bool = True, **more: Any) -> dict[str, Any]:
    encoder = more.pop("encoder", None)
    fitted = Fitted(embedder, encoder, sets or noisy_sets(), None, 0.0)
    section = SECTION.model_copy(update=more)
    return verify(fitted, section, has_uncertainty=uncertain)


def sampled(name: str, seed: int) -> tuple[Tensor, Tensor]:
    embedder, generator = Clouds(nn.Linear(1, 1)), torch.Generator().manual_seed(seed)
    mixtures = embedder.mixtures(noisy_sets()[name])
    first, second = (embedder.drawn(mixtures, 4, generator).double() for _ in range(2))
    return first, second


def probability(first: Tensor, second: Tensor, i: int, j: int) -> float:
    a, b = float(Clouds.match.scale.detach()), float(Clouds.match.offset.detach())
    logits = b - a * torch.cdist(first[:, i], second[:, j])
    return float(logits.sigmoid().mean())


def test_hedged_images_by_plain_loops() -> None:
    numbers = measured(Clouds(nn.Linear(1, 1)))
    labels = (torch.arange(NUMBER) % CLASSES).tolist()
    pairs = balanced_pairs(torch.tensor(labels), 200, (0,)).tolist()
    drawn_pairs = random_pairs(NUMBER, 2000, (0,)).tolist()
    for name, key in (("test", "test"), ("noisy", "test/noisy")):
        first, second = sampled(key, 0)
        score = torch.tensor(
            [[probability(first, second, i, j) for j in range(NUMBER)] for i in range(NUMBER)]
        )
        right = [vote_by_hand(score[i].tolist(), labels, own=i) == labels[i] for i in range(NUMBER)]
        assert numbers[name]["knn"] == pytest.approx(sum(right) / NUMBER)
        precisions, of_pairs, of_votes = [], [], []
        for repeat in range(3):
            first, second = sampled(key, repeat)
            values = [probability(first, second, i, j) for i, j in pairs]
            same = [labels[i] == labels[j] for i, j in pairs]
            precisions.append(average_precision_score(same, values))
            eta = [1 - probability(first, second, i, i) for i in range(NUMBER)]
            both = [(eta[i] + eta[j]) / 2 for i, j in drawn_pairs]
            p = [probability(first, second, i, j) for i, j in drawn_pairs]
            order = sorted(range(2000), key=lambda at: both[at])
            bins = [order[250 * b : 250 * (b + 1)] for b in range(8)]
            curve = [
                average_precision_score(
                    [labels[drawn_pairs[at][0]] == labels[drawn_pairs[at][1]] for at in rows],
                    [p[at] for at in rows],
                )
                for rows in bins
            ]
            of_pairs.append(-stats.kendalltau(range(8), [round(value, 12) for value in curve]).statistic)
            order = sorted(range(NUMBER), key=lambda at: eta[at])
            shares = [sum(right[at] for at in order[15 * b : 15 * (b + 1)]) / 15 for b in range(8)]
            of_votes.append(-stats.kendalltau(range(8), [round(value, 12) for value in shares]).statistic)
        assert numbers[name]["average_precision"] == pytest.approx(sum(precisions) / 3, abs=1e-6)
        own = numbers[name]["correlations"]["own"]
        assert own["average_precision"] == pytest.approx(sum(of_pairs) / 3)
        assert own["knn"] == pytest.approx(sum(of_votes) / 3)
    assert numbers["noisy"]["average_precision"] < numbers["test"]["average_precision"]


def vote_by_hand(scores: list[float], labels: list[int], own: int) -> int:
    order = sorted((i for i in range(len(scores)) if i != own), key=lambda i: -scores[i])[:5]
    votes = [labels[i] for i in order]
    return max(votes, key=lambda label: (votes.count(label), -votes.index(label)))


def test_neighbours_in_another_gallery_and_of_means() -> None:
    numbers = measured(Clouds(nn.Linear(1, 1)))
    labels = (torch.arange(NUMBER) % CLASSES).tolist()
    first, second = sampled("test/noisy", 0)[0], sampled("test", 0)[1]
    right = 0
    for i in range(NUMBER):
        scores = [probability(first, second, i, j) for j in range(NUMBER)]
        right += vote_by_hand(scores, labels, own=i) == labels[i]
    assert numbers["noisy"]["knn_in_gallery"] == pytest.approx(right / NUMBER)
    assert numbers["test"]["knn_in_gallery"] is None
    means = noisy_sets()["test"].inputs[:, :2]
    away = torch.cdist(means, means)
    by_means = sum(vote_by_hand((-away[i]).tolist(), labels, own=i) == labels[i] for i in range(NUMBER))
    assert numbers["test"]["knn_of_means"] == pytest.approx(by_means / NUMBER)
    with pytest.raises(ValueError, match="test sets noisy and test have different labels"):
        measured(Clouds(nn.Linear(1, 1)), sets=noisy_sets(turned=True))


@pytest.mark.parametrize("own", [False, True])
def test_any_other_method_is_measured_by_its_similarity(own: bool) -> None:
    embedder = Points(nn.Linear(1, 1))
    embedder.own = own
    assert not isinstance(embedder, Hedged)
    numbers = measured(embedder)["test"]
    rows = noisy_sets()["test"].inputs
    labels = torch.arange(NUMBER) % CLASSES
    z = nn.functional.normalize(rows[:, :2])
    pairs = balanced_pairs(labels, 200, (0,))
    cosine = (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(1)
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    assert numbers["average_precision"] == pytest.approx(
        average_precision_score(same.numpy(), cosine.numpy()), abs=1e-6
    )
    similar = (z @ z.T).tolist()
    right = sum(vote_by_hand(similar[i], labels.tolist(), own=i) == int(labels[i]) for i in range(NUMBER))
    assert numbers["knn"] == pytest.approx(right / NUMBER, abs=1.5 / NUMBER)


@pytest.mark.parametrize("elements", [1 << 19, 30])
def test_a_mismatch_is_the_rest_and_keeps_its_digits_where_images_are_alike(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.harness.verified_pairs.ELEMENTS_AT_ONCE", elements)
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(*shape, generator=generator).double() for shape in ((3, 5, 2), (4, 7, 2)))
    match = MatchProbability(1.5, 0.7).double()
    torch.testing.assert_close(
        mismatch_probability(first, second, match), 1 - match_probability(first, second, match)
    )
    match = MatchProbability(1.0, 30.0)
    near = torch.tensor([[[0.0], [0.5], [1.0]]])
    probability = mismatch_probability(near[:, :1], near, match)[0].double()
    expected = torch.tensor([-30.0, -29.5, -29.0], dtype=torch.float64).exp()
    torch.testing.assert_close(probability, expected, rtol=1e-5, atol=0)
