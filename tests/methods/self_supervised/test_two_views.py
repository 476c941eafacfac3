"""Any method without labels: the same weights whatever the labels are, resumed to the bit, and errors with names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, InfoNCELoss
from laplacian_metric import LAM, methods
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Keep, Learner, Method, Setup
from laplacian_metric.data.views import ImageViews
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.self_supervised.two_views import TwoViewLearner, ViewLoader, stacked_views
from laplacian_metric.training import TrainingOptions, checkpoint, train

IMAGES = 40
SETUP = Setup(ContrastiveLoss(margin=0.7), IMAGES)
METHODS: dict[str, dict[str, Any]] = {
    "deterministic": {},
    "vmf": {"samples": 4},
    "hib": {},
    "pfe": {},
    "soft-contrastive": {},
    "online-laplace": {"warmup": 1},
    "mc-dropout": {"samples": 3},
    "triplet": {"mining": "batch"},
    "nt-xent": {},
    "isif": {},
    "umm": {"samples": ((0, 2), (1, 1))},
}


def _data(labels: Tensor | None = None, count: int = IMAGES, seed: int = 0) -> Dataset:
    pixels = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return Dataset(pixels, labels, batch_size=16)


def _encoder() -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        return Encoder(backbone, nn.Linear(6 * 16, 4))


def _method(name: str) -> Method:
    method = methods.make(name, **METHODS[name])
    return method if name in ("nt-xent", "isif", "umm") else methods.unlabelled(method)


def _train(name: str, folder: Path, train_data: Dataset, *, epochs: int = 2, setup: Setup = SETUP) -> Learner:
    learner = _method(name).learner([_encoder()], setup)
    options = TrainingOptions(epochs=epochs, batch_size=9, learning_rate=1e-3, checkpoint_every=2)
    validation = _data(torch.arange(12) % 3, 12, seed=1)
    train(learner, train_data, validation, options, folder, progress=False)
    return learner


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_the_same_to_the_bit_whatever_the_labels(name: str, tmp_path: Path) -> None:
    labels = torch.arange(IMAGES) % 4
    one = _train(name, tmp_path / "one", _data(labels), epochs=1)
    permuted = _data(labels.flip(0).roll(3))
    other = _train(name, tmp_path / "other", permuted, epochs=1)
    none = _train(name, tmp_path / "none", _data(None), epochs=1)
    before = _method(name).learner([_encoder()], SETUP).module.state_dict()
    state = one.module.state_dict()
    for key, tensor in state.items():
        assert torch.equal(tensor, other.module.state_dict()[key]), key
        assert torch.equal(tensor, none.module.state_dict()[key]), key
    assert any(not torch.equal(tensor, before[key]) for key, tensor in state.items())
    assert one.keep is Keep.LAST
    e = one.embedder(FitData(_data(labels), permuted)).embed(_data(labels))
    assert len(e) == IMAGES
    assert bool(torch.isfinite(e.mean).all())


class StopError(Exception):
    """What ends a training in the middle of an epoch."""


@pytest.mark.parametrize("name", ["umm", "vmf", "online-laplace"])
def test_stopped_in_the_middle_of_an_epoch_it_ends_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _data(torch.arange(IMAGES) % 4)
    _train(name, tmp_path / "whole", data)
    steps = [0]
    step = TwoViewLearner.step

    def stopping(self: TwoViewLearner) -> None:
        steps[0] += 1
        if steps[0] == 8:  # of five steps in each epoch, one after the checkpoint of the second
            raise StopError
        step(self)

    monkeypatch.setattr(TwoViewLearner, "step", stopping)
    with pytest.raises(StopError):
        _train(name, tmp_path / "stopped", data)
    monkeypatch.undo()
    _train(name, tmp_path / "stopped", data)
    for file in (checkpoint.LAST, checkpoint.BEST):
        tensors, whole = (checkpoint.read(tmp_path / folder / file)[0] for folder in ("stopped", "whole"))
        assert tensors.keys() == whole.keys()
        assert all(torch.equal(tensors[key], whole[key]) for key in whole)


def test_views_of_an_image_share_its_number() -> None:
    inputs = torch.arange(5.0)[:, None]
    both, ids = stacked_views(inputs, lambda x, g: x + 10 * torch.rand(1), None)
    assert torch.equal(ids, torch.arange(5).repeat(2))
    assert torch.equal(
        (both[:5] - both[5:]).round(decimals=4), (both[:1] - both[5:6]).expand(5, 1).round(decimals=4)
    )


def test_every_pass_of_a_view_loader_is_the_same_and_needs_no_labels() -> None:
    loader = ViewLoader(_data(None), seed=3)
    first, second = list(loader), list(loader)
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(first, second, strict=True))
    ids = torch.cat([labels for _, labels in first])
    assert bool((torch.bincount(ids) == 2).all())
    assert len(ids) == 2 * IMAGES
    assert not torch.equal(first[0][0], next(iter(ViewLoader(_data(None), seed=4)))[0])


@pytest.mark.parametrize(
    "loss", [InfoNCELoss(0.2), ContrastiveLoss(margin=0.7)], ids=["InfoNCE", "contrastive"]
)
@pytest.mark.parametrize("structure", ["diag", "kron", "lowrank", "full"])
def test_lam_fits_two_views_of_unlabelled_images(loss: Any, structure: str) -> None:
    encoder = _encoder().eval()
    lam = LAM(encoder, loss, "fixed" if structure != "kron" else "clipped", structure, n_effective=IMAGES)
    lam.fit(ViewLoader(_data(None)), check_mode=False, batch_size=16)
    assert lam.fitted.num_positives == IMAGES
    lam.optimize_prior_precision()
    e = lam.embed(_data(None))
    assert len(e) == IMAGES
    assert bool((e.kappa > 0).all())
    assert bool(torch.isfinite(e.kappa).all())


def test_lam_of_info_nce_is_the_mean_of_its_batches_and_can_be_stored(tmp_path: Path) -> None:
    encoder, loss = _encoder().eval().double(), InfoNCELoss(0.2)
    images = _data(None).inputs.double()
    h = encoder.features(torch.cat([images, images.flip(3)])).detach()
    ids = torch.arange(IMAGES).repeat(2)
    batches = list(torch.arange(IMAGES).view(4, 10))
    batches = [torch.cat([rows, rows + IMAGES]) for rows in batches]
    lam = LAM(encoder, loss).fit_features(h, ids, batches=batches, check_mode=False)
    from hessians import Pairs, last_layer_ggn_diagonal

    parts = [
        last_layer_ggn_diagonal(
            h[rows], encoder.head.weight, encoder.head.bias, Pairs.from_labels(ids[rows]), loss, "fixed"
        )[0]
        for rows in batches
    ]
    torch.testing.assert_close(lam.fitted.curvature.diagonal()[:, :-1], torch.stack(parts).mean(0).detach())
    lam.save(tmp_path / "lam.safetensors")
    assert LAM.load(tmp_path / "lam.safetensors", encoder).loss == loss


@pytest.mark.parametrize("labels", [None, "missing"])
def test_validation_images_need_no_labels_where_the_last_epoch_is_kept(labels: Any, tmp_path: Path) -> None:
    options = TrainingOptions(epochs=2, batch_size=9, learning_rate=1e-3)
    validation = None if labels == "missing" else _data(None, 12, seed=1)
    learner = _method("umm").learner([_encoder()], SETUP)
    history = train(learner, _data(None), validation, options, tmp_path / "none", progress=False).history
    assert len(history) == 2
    assert "recall@1" not in history[0]
    umm_learner = _method("umm").learner([_encoder()], SETUP)
    with_labels = _data(torch.arange(12) % 3, 12, seed=1)
    assert (
        "recall@1"
        in train(umm_learner, _data(None), with_labels, options, tmp_path / "some", progress=False).history[0]
    )
    for key, tensor in learner.module.state_dict().items():
        assert torch.equal(tensor, umm_learner.module.state_dict()[key])
    other = methods.make("deterministic").learner([_encoder()], SETUP)
    with pytest.raises(ValueError, match=r"no validation images|not known"):
        train(other, _data(torch.arange(IMAGES) % 4), validation, options, tmp_path / "other", progress=False)


# --- bad input ---


def test_what_needs_labels_is_refused(tmp_path: Path) -> None:
    learner = methods.make("umm").learner([_encoder()], SETUP)
    for images, options, named in (
        (IMAGES, {"sampling": "balanced", "images_per_class": 2}, "sampling"),
        (1, {}, "batches"),
    ):
        training = TrainingOptions(epochs=1, batch_size=8, **options)
        with pytest.raises(ValueError, match=named):
            train(
                learner,
                _data(None, images),
                _data(torch.arange(12) % 3, 12),
                training,
                tmp_path,
                progress=False,
            )


def test_a_configuration_names_the_method_inside() -> None:
    views = ImageViews(flip=0.0)
    method = methods.make("unlabelled", method="vmf", options={"samples": 2}, views=views)
    assert method.learner([_encoder()], SETUP).augmentation == views
