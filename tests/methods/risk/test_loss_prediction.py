"""Loss prediction: the head leaves the encoder alone, learns what can be learned, and is stored as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import metrics
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.data import from_arrays
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import make, risk
from laplacian_metric.methods.risk.fitting import _batches
from laplacian_metric.methods.risk.head import check_start
from laplacian_metric.methods.risk.joint import JointLearner
from laplacian_metric.training import TrainingOptions, train
from tests.manifests import version
from tests.methods.learning import noisy


def an_encoder() -> Encoder:
    head = nn.Linear(7, 6, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(6, 7))
    return Encoder(nn.Identity(), head)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "l2"},
        {"loss": "ranking"},
        {"target": "pair-loss"},
        {"target": "cross-entropy", "loss": "ranking"},
    ],
)
def test_the_risk_ranks_errors_of_new_items(options: dict[str, Any]) -> None:
    data, test = FitData(noisy(900, 0), noisy(400, 1)), noisy(400, 2)
    method = make("loss-prediction", hidden=32, learning_rate=3e-3, batch_size=64, **options)
    learner = method.learner([an_encoder()], Setup(ContrastiveLoss(), num_images=900))
    embedder = learner.embedder(data)
    e = embedder.embed(test)
    assert metrics.r_auroc(e.point, test.labels, e.uncertainty) > 0.63
    assert torch.allclose(e.kappa, 1 / e.uncertainty.clamp(min=1e-6))  # the stated map
    assert embedder.settings()["epoch"] in range(1, 7)
    assert embedder.settings()["validation_r_auroc"] > 0.6


def test_points_are_the_same_to_the_bit_with_the_head_and_nothing_of_the_encoder_has_a_gradient() -> None:
    torch.manual_seed(0)
    encoder = Encoder(nn.Sequential(nn.Linear(7, 16), nn.ReLU()), nn.Linear(16, 4))
    data, test = FitData(noisy(300, 0), noisy(200, 1)), noisy(200, 2)
    setup = Setup(ContrastiveLoss(), num_images=300)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    plain = make("deterministic").learner([encoder], setup).embedder(data).embed(test)
    learner = make("loss-prediction", hidden=8).learner([encoder], setup)
    e = learner.embedder(data).embed(test)
    assert torch.equal(e.point, plain.point)
    assert metrics.recall_at_k(e.point, test.labels) == metrics.recall_at_k(plain.point, test.labels)
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert learner.parameters() == []


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_a_head_that_starts_from_zero_is_refused(layer: int) -> None:
    head = risk.RiskHead(4, hidden=8)
    check_start(head)
    nn.init.zeros_(head.layers[layer].weight)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"layers.{layer} .*random weights"):
        risk.fit_head(
            head, [torch.randn(9, 4)], torch.rand(9), (torch.randn(5, 4), torch.rand(5), torch.ones(5))
        )


def test_mapped_features_in_float16_train_the_same_head(tmp_path: Path) -> None:
    rows, target = noisy(700, 0).inputs, torch.rand(700, generator=torch.Generator().manual_seed(3))
    wrong = target > 0.5
    np.save(tmp_path / "h.npy", rows.half().numpy())
    mapped = torch.as_tensor(np.load(tmp_path / "h.npy", mmap_mode="c"))
    heads = []
    for features in (mapped, rows.half()):
        heads.append(risk.RiskHead(7, hidden=8, generator=torch.Generator().manual_seed(0)))
        risk.fit_head(heads[-1], [features], target, (rows[:99], target[:99], wrong[:99]))
    assert torch.equal(heads[0].predict(rows), heads[1].predict(rows))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 40_000])
def test_an_epoch_has_every_row_of_every_view_once_and_in_random_order(count: int) -> None:
    views = [torch.empty(count, 1)] * 2
    batches = list(_batches(views, 256, torch.Generator().manual_seed(0)))
    for view in (0, 1):
        rows = torch.cat([rows for number, rows in batches if number == view])
        assert torch.equal(rows.sort().values, torch.arange(count))
        if count >= 1000:
            assert (
                abs(float(torch.corrcoef(torch.stack([rows.float(), torch.arange(count).float()]))[0, 1]))
                < 0.2
            )
    assert max(len(rows) for _, rows in batches) <= 256


def test_views_are_cached_and_stand_for_one_target(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    images = (torch.rand(120, 1, 6, 6, generator=g) * 120 + 30 * labels[:, None, None, None]).to(torch.uint8)

    def brighter(image: Tensor) -> Tensor:
        return (image * (0.5 + torch.rand(1))).clamp(max=255).to(torch.uint8)

    data = from_arrays(images, labels, split="train", augment=brighter)
    encoder = Encoder(nn.Flatten(), nn.Linear(36, 4))
    fit_data = FitData(data, from_arrays(images[:60], labels[:60], split="validation"), tmp_path)
    setup = Setup(ContrastiveLoss(), num_images=120)
    method = make("loss-prediction", views=3, hidden=8, epochs=2, neighbours=3)
    first = method.learner([encoder], setup).embedder(fit_data).embed(images[:9].float() / 255)
    assert {path.name for path in tmp_path.iterdir()} == {
        "train",
        "train-1",
        "train-2",
        "train-3",
        "validation",
    }
    again = method.learner([encoder], setup).embedder(fit_data).embed(images[:9].float() / 255)
    assert torch.equal(first.uncertainty, again.uncertainty)
    with pytest.raises(ValueError, match=r"views is 3.*augment="):
        make("loss-prediction", views=3).learner([an_encoder()], setup).embedder(
            FitData(noisy(90, 0), noisy(90, 1))
        )


def test_a_stored_head_is_the_same_and_belongs_to_its_encoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = Encoder(nn.Sequential(nn.Linear(7, 16), nn.ReLU()), nn.Linear(16, 4))
    head, _ = risk.pretrain(encoder, FitData(noisy(300, 0), noisy(200, 1)), risk.LossPrediction(hidden=8))
    head.card = {"trained on": "noise", "R-AUROC": {"noise": 0.7}}
    head.save(tmp_path / "head")
    loaded = risk.RiskHead.load(tmp_path / "head")
    assert loaded.card == head.card
    x = noisy(50, 3).inputs
    embedding, uncertainty = risk.with_head(encoder, loaded)(x)
    assert torch.equal(embedding, encoder(x))
    assert torch.allclose(uncertainty, head(encoder.features(x)), atol=2e-3)
    head.save(tmp_path / "head", overwrite=True, half=False)
    assert torch.equal(risk.RiskHead.load(tmp_path / "head")(encoder.features(x)), head(encoder.features(x)))
    other = Encoder(nn.Sequential(nn.Linear(7, 16), nn.ReLU()), nn.Linear(16, 4))
    with pytest.raises(ValueError, match=r"another backbone.*check=False"):
        risk.with_head(other, loaded)
    risk.with_head(other, loaded, check=False)
    with pytest.raises(ValueError, match="16"):
        risk.with_head(an_encoder(), loaded)
    (version(tmp_path / "head") / "weights.safetensors").write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match=r"weights\.safetensors"):
        risk.RiskHead.load(tmp_path / "head")


def test_a_module_that_returns_features_takes_a_head() -> None:
    backbone = nn.Linear(3, 5)
    embedding, uncertainty = risk.with_head(backbone, risk.RiskHead(5, hidden=4))(torch.randn(2, 3))
    assert embedding.shape == (2, 5)
    assert uncertainty.shape == (2,)


def test_what_cannot_be_learned_from_is_refused() -> None:
    head, x = risk.RiskHead(4, hidden=8), torch.randn(9, 4)
    validation = (x, torch.rand(9), torch.arange(9) < 4)
    for target, name in (
        (torch.ones(9), "1 for every item"),
        (torch.full((9,), torch.nan), "NaN"),
        (torch.rand(8), r"view 0 has shape \(9, 4\)"),
    ):
        with pytest.raises(ValueError, match=name):
            risk.fit_head(head, [x], target, validation)
    x[0] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN"):
        risk.fit_head(head, [x], torch.rand(9), validation)
    head, x[0] = risk.RiskHead(4, hidden=8), 1
    with pytest.warns(UserWarning, match="0 of 9 validation items"):
        risk.fit_head(head, [x], torch.rand(9), (x, torch.rand(9), torch.zeros(9, dtype=torch.bool)))


# --- with the training ---


def joint(**options: Any) -> JointLearner:
    torch.manual_seed(0)
    encoder = Encoder(nn.Sequential(nn.Linear(7, 16), nn.ReLU()), nn.Linear(16, 4))
    setup = Setup(ContrastiveLoss(), num_images=300, num_classes=6)
    return make("joint-loss-prediction", hidden=8, **options).learner([encoder], setup)


@pytest.mark.parametrize("target", ["retrieval", "pair-loss", "cross-entropy"])
def test_with_a_stop_gradient_the_encoder_gets_the_gradient_of_its_own_loss_alone(target: str) -> None:
    batch = noisy(60, 0)
    gradients = []
    for options in ({"weight": 1e-9}, {"weight": 5.0}, {"weight": 5.0, "stop_gradient": False}):
        learner = joint(target=target, **options)
        learner.loss(batch.inputs, batch.labels).backward()
        gradients.append([parameter.grad for parameter in learner.network.encoder.parameters()])
    alone, stopped, both = gradients
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(alone, stopped, strict=True))
    assert any(not torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, both, strict=True))


@pytest.mark.parametrize("target", ["retrieval", "cross-entropy"])
def test_joint_training_solves_the_problem_and_ranks_errors(target: str, tmp_path: Path) -> None:
    learner = joint(target=target)
    options = TrainingOptions(epochs=8, learning_rate=1e-2, batch_size=100)
    train(learner, noisy(900, 0), noisy(300, 1), options, tmp_path)
    test = noisy(500, 2)
    e = learner.embedder(FitData([], [])).embed(test)
    assert metrics.recall_at_k(e.point, test.labels) > 0.5
    assert metrics.r_auroc(e.point, test.labels, e.uncertainty) > 0.6


def test_a_classifier_that_knows_all_items_by_heart_is_named() -> None:
    """In a thousand dimensions sixty random items are told apart whatever their labels are."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 6
    train_set, validation = (Dataset(torch.randn(60, 1000, generator=g), labels) for _ in range(2))
    learner = make("loss-prediction", target="cross-entropy", hidden=8).learner(
        [Encoder(nn.Identity(), nn.Linear(1000, 4))], Setup(ContrastiveLoss(), num_images=60)
    )
    with pytest.warns(UserWarning, match="knows 60 items by heart"):
        learner.embedder(FitData(train_set, validation))
