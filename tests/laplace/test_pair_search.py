"""All pairs of a data set by the search: exact, estimated with a measured error, and resumed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss, Pairs
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM, Encoder
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.laplace import fit, pair_search
from laplacian_metric.laplace.layer import LayerCurvature
from tests.laplace.fit_reference import LOSSES, Layer

pytestmark = pytest.mark.filterwarnings("ignore::hessians.checks.CurvatureWarning")
close = torch.testing.assert_close
LARGE = Layer.random(5000, 5, 3, classes=12, seed=1)  # beyond what fits a dense matrix of pairs
SQUARED = [name for name, loss in LOSSES.items() if loss.power == 2]


def fitted(
    layer: Layer,
    loss: ContrastiveLoss,
    *,
    pairs: str = "auto",
    approximation: str = "fixed",
    **options: object,
) -> LAM:
    encoder = Encoder(nn.Identity(), nn.Linear(*reversed(layer.weight.shape)).double())
    encoder.head.weight.data, encoder.head.bias.data = layer.weight, layer.bias
    lam = LAM(encoder, loss, approximation, pairs=pairs)
    labels = options.pop("labels", layer.labels)
    features = options.pop("features", layer.features)
    return lam.fit_features(features, labels, check_mode=False, progress=False, **options)  # type: ignore[arg-type]


def curvature(lam: LAM) -> LayerCurvature:
    return lam.fitted.curvature


@pytest.mark.parametrize("name", SQUARED)
@pytest.mark.parametrize("approximation", ["fixed", "positive"])
def test_exact_is_all_pairs(name: str, approximation: str) -> None:
    """5,000 images by the search, and by pairs that know their labels, which go row by row."""
    loss = LOSSES[name]
    posterior = fitted(LARGE, loss, approximation=approximation)
    rows = fitted(LARGE, loss, approximation=approximation, labels=Pairs.from_labels(LARGE.labels))
    close(curvature(posterior).diagonal(), curvature(rows).diagonal(), rtol=1e-9, atol=1e-12)
    close(posterior.fitted.loss_value, rows.fitted.loss_value)
    close(posterior.fitted.gradient, rows.fitted.gradient, rtol=1e-8, atol=1e-10)
    assert posterior.fitted.num_negatives == rows.fitted.num_negatives
    assert posterior.diagnostics().precision_error == 0


@pytest.mark.statistical
@pytest.mark.parametrize("name", SQUARED)
def test_the_error_of_an_estimate_is_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over draws the error that is reported is the one there is, and the mean comes nearer than single draws."""
    monkeypatch.setattr(pair_search, "PARTNERS", 64)
    loss = LOSSES[name]
    exact = curvature(fitted(LARGE, loss)).diagonal()
    draws, reported = [], []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        lam = fitted(LARGE, loss, pairs="estimate", pair_tolerance=0.5, generator=generator)
        draws.append(curvature(lam).diagonal())
        reported.append(lam.fitted.curvature_error)
        precision = lam.scale * draws[-1] + lam.prior_precision
        share = lam.scale * lam.fitted.curvature_error / float(precision.norm())
        close(lam.diagnostics().precision_error, share)
    errors = torch.stack([(draw - exact).norm() for draw in draws])
    expected = torch.tensor(reported, dtype=torch.float64).square().mean().sqrt()
    assert 0.4 < float(errors.square().mean().sqrt() / expected) < 2.5
    assert (torch.stack(draws).mean(0) - exact).norm() < 0.75 * errors.square().mean().sqrt()


def test_rounds_follow_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tolerance that all pairs reach with less work is reached by all pairs."""
    monkeypatch.setattr(pair_search, "PARTNERS", 16)
    loss = LOSSES["arccos"]
    rough = fitted(LARGE, loss, pairs="estimate", pair_tolerance=0.4)
    assert 0 < rough.diagnostics().precision_error < 0.4
    strict = fitted(LARGE, loss, pairs="estimate", pair_tolerance=1e-6)
    assert strict.diagnostics().precision_error == 0
    close(curvature(strict).diagonal(), curvature(fitted(LARGE, loss)).diagonal())


def test_a_missed_tolerance_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_search, "PARTNERS", 16)
    monkeypatch.setattr(pair_search, "MOST_ROUNDS", 4)
    monkeypatch.setattr(pair_search, "EXACT_IMAGES", 1000)
    with pytest.warns(CurvatureWarning, match=r'pairs="exact"'):
        fitted(LARGE, LOSSES["arccos"], pair_tolerance=1e-4)


@pytest.mark.parametrize("case", ["one class", "no active negatives", "duplicates", "two images"])
def test_degenerate(case: str) -> None:
    """An estimate over so few images looks at all pairs."""
    layer, loss, labels = Layer.random(60, 4, 2), LOSSES["arccos"], None
    features = layer.features
    if case == "one class":
        labels = torch.zeros(60, dtype=torch.long)
    elif case == "no active negatives":
        loss = ContrastiveLoss(1e-9)
    elif case == "duplicates":
        features = features[:6].repeat(10, 1)
    else:
        features, labels = features[:2], torch.tensor([0, 1])
    labels = layer.labels if labels is None else labels
    pair = [
        curvature(fitted(layer, loss, pairs=pairs, features=features, labels=labels)).diagonal()
        for pairs in ("exact", "estimate")
    ]
    close(*pair)


class KilledError(Exception):
    """As if the process had been killed."""


@pytest.mark.parametrize("pairs", ["exact", "estimate"])
def test_resumed_to_the_bit(pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed search has noted is not computed again, and the result is the same."""
    monkeypatch.setattr(pair_search, "PARTNERS", 16)
    monkeypatch.setattr(pair_search, "SECONDS_BETWEEN_NOTES", 0.0)
    loss, options = LOSSES["arccos"], {"pairs": pairs, "pair_tolerance": 0.3}
    expected = fitted(LARGE, loss, **options)  # type: ignore[arg-type]
    features = Dataset(LARGE.features, LARGE.labels, folder=tmp_path)
    name = "add_tile" if pairs == "exact" else "add_round"
    original, calls = getattr(pair_search.ActiveSearch, name), []

    def counted(self: object, *args: object, **keywords: object) -> object:
        calls.append(args)
        if len(calls) == 7:
            raise KilledError
        return original(self, *args, **keywords)

    monkeypatch.setattr(pair_search.ActiveSearch, name, counted)
    with pytest.raises(KilledError):
        fitted(LARGE, loss, features=features, **options)  # type: ignore[arg-type]
    assert (tmp_path / pair_search.FILE).is_file()
    first = len(calls)
    again = fitted(LARGE, loss, features=features, **options)  # type: ignore[arg-type]
    assert torch.equal(curvature(again).diagonal(), curvature(expected).diagonal())
    assert again.fitted.curvature_error == expected.fitted.curvature_error
    assert not (tmp_path / pair_search.FILE).exists()
    resumed = len(calls) - first
    calls.clear()
    monkeypatch.setattr(
        pair_search.ActiveSearch, name, lambda self, *a, **k: calls.append(a) or original(self, *a, **k)
    )
    fitted(LARGE, loss, **options)  # type: ignore[arg-type]
    assert resumed <= len(calls) - 6


def test_notes_of_other_pairs_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_search, "SECONDS_BETWEEN_NOTES", 0.0)
    monkeypatch.setattr(pair_search._Note, "remove", lambda self: None)
    loss = LOSSES["arccos"]
    other = Layer.random(5000, 5, 3, classes=12, seed=2)
    fitted(LARGE, loss, features=Dataset(LARGE.features, LARGE.labels, folder=tmp_path))
    assert (tmp_path / pair_search.FILE).is_file()
    posterior = fitted(other, loss, features=Dataset(other.features, other.labels, folder=tmp_path))
    close(curvature(posterior).diagonal(), curvature(fitted(other, loss)).diagonal())
    (tmp_path / pair_search.FILE).write_bytes(b"no tensors")
    fitted(LARGE, loss, features=Dataset(LARGE.features, LARGE.labels, folder=tmp_path))


def anonymous_bytes() -> int:
    """Memory of this process without the pages of mapped files."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) << 10


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not say how much memory is mapped"
)
@pytest.mark.parametrize("pairs", ["exact", "estimate"])
def test_mapped_features_stay_in_their_file(
    pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many features each image has, a fit holds blocks of them and what it knows of each image."""
    for module in (fit, pair_search):
        monkeypatch.setattr(module, "FEATURE_MEMORY", 4 << 20)
    count, width = 6000, 8192
    mapped = torch.from_file(str(tmp_path / "features"), shared=True, size=count * width).view(count, width)
    generator = torch.Generator().manual_seed(0)
    for rows in mapped.split(500):
        rows.normal_(generator=generator)
    encoder = Encoder(nn.Identity(), nn.Linear(width, 3))
    peaks, ended = [anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peaks.append(anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        LAM(encoder, LOSSES["arccos"], pairs=pairs).fit_features(
            mapped, torch.arange(count) % 5, check_mode=False, progress=False
        )
    finally:
        ended.set()
        watcher.join()
    assert len(peaks) > 2
    assert max(peaks) - peaks[0] < mapped.nbytes / 2
