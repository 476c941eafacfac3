"""Model folders: what comes back is what was saved, and nothing else is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.data import Preparation
from laplacian_metric.encoder.layers import PixelScaling
from laplacian_metric.laplace.model_folder import ModelFolder, ModelManifest
from laplacian_metric.laplace.storage import TENSORS
from tests.manifests import content, rewrite, version


def features(count: int = 60, width: int = 4) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    return Dataset(torch.eye(width)[labels] + 0.2 * torch.randn(count, width, generator=generator), labels)


def fitted(encoder: Encoder, rows: Dataset) -> LAM:
    return LAM(encoder, ContrastiveLoss(), prior_precision=2.0).fit_features(rows, check_mode=False)


def of_features(dtype: torch.dtype = torch.float32, bias: bool = True) -> ModelFolder:
    torch.manual_seed(0)
    encoder = Encoder(nn.Identity(), nn.Linear(4, 3, bias=bias, dtype=dtype))
    rows = features()
    lam = fitted(encoder, Dataset(rows.features.to(dtype), rows.labels))
    about = {"data": "mine", "place": Path("/somewhere/else/photos"), "nothing": float("nan")}
    return ModelFolder(lam, class_names=("a", "b"), about=about, seen={"train": torch.arange(3)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_a_model_of_features_comes_back(tmp_path: Path, dtype: torch.dtype, bias: bool) -> None:
    model = of_features(dtype, bias)
    rows = features()
    held_out = Dataset(rows.features.to(dtype), rows.labels)
    again = ModelFolder.load(model.save(tmp_path / "model"))
    assert again.takes_features
    assert again.preparation is None
    assert again.class_names == ("a", "b")
    assert again.about == {"data": "mine", "place": "photos", "nothing": None}
    assert again.seen["train"].tolist() == [0, 1, 2]
    assert again.lam.fingerprint() == model.lam.fingerprint()
    mine, theirs = (one.lam.embed_features(held_out.features) for one in (model, again))
    assert torch.equal(mine.kappa, theirs.kappa)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_an_encoder_by_name_comes_back(tmp_path: Path) -> None:
    encoder = Encoder.from_name("n-digit", dim=2, seed=0, digits=2).eval()
    encoder.recipe = {"name": "n-digit", "dim": 2}
    images = torch.rand(12, 1, 28, 56, generator=torch.Generator().manual_seed(0))
    lam = LAM(encoder, ContrastiveLoss()).fit([(images, torch.arange(12) % 3)], check_mode=False)
    model = ModelFolder(lam, Preparation(None, 1, "unit"), options={"digits": 2})
    again = ModelFolder.load(model.save(tmp_path / "model"))
    assert not again.takes_features
    assert again.preparation == Preparation(None, 1, "unit")
    assert torch.equal(again.lam.embed(images).kappa, lam.embed(images).kappa)
    # An architecture that the name and the options do not give is noticed when it is saved, not when it is read.
    with pytest.raises(ValueError, match=r"n-digit|weights"):
        ModelFolder(lam, Preparation(), options={"digits": 3}).save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_numbers_that_pixels_are_scaled_by_come_back(tmp_path: Path) -> None:
    # Weights of torchvision may have been trained with other numbers than its architecture is made with.
    encoder = Encoder.from_name("torchvision:shufflenet_v2_x0_5", dim=2, seed=0).eval()
    encoder.backbone.scaling = PixelScaling([0.1, 0.2, 0.3], [0.5, 0.6, 0.7])
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    lam = LAM(encoder, ContrastiveLoss()).fit([(images, torch.arange(6) % 2)], check_mode=False)
    again = ModelFolder.load(ModelFolder(lam, Preparation()).save(tmp_path / "model"))
    assert torch.equal(again.encoder(images), encoder(images))


def test_a_module_of_its_own_needs_its_architecture(tmp_path: Path) -> None:
    def architecture() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))

    encoder = Encoder.from_module(architecture()).eval()
    images = torch.rand(12, 2, 2, 2)
    lam = LAM(encoder, ContrastiveLoss()).fit([(images, torch.arange(12) % 3)], check_mode=False)
    with pytest.raises(ValueError, match="preparation is missing"):
        ModelFolder(lam).save(tmp_path / "model")
    folder = ModelFolder(lam, Preparation()).save(tmp_path / "model")
    with pytest.raises(ValueError, match="architecture"):
        ModelFolder.load(folder)
    again = ModelFolder.load(folder, architecture=architecture)
    assert again.lam.fingerprint() == lam.fingerprint()


@pytest.mark.parametrize("name", ModelManifest.PAYLOADS)
def test_a_file_that_was_altered_or_cut_is_refused(tmp_path: Path, name: str) -> None:
    folder = of_features().save(tmp_path / "model")
    path = version(folder) / name
    if path.is_dir():
        path = version(path) / TENSORS
        name = TENSORS
    content = path.read_bytes()
    for altered in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1]):
        path.write_bytes(altered)
        with pytest.raises(ArtifactError, match=name):
            ModelFolder.load(folder, verify=True)
    path.unlink()
    with pytest.raises(ArtifactError, match=name):
        ModelFolder.load(folder)


ENCODER = {"kind": "features", "name": None, "dim": 3, "features": 4, "bias": True, "dtype": "torch.float32"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"files": []}, "files"),
        ({"files": {}}, "encoder"),
        ({"encoder": {}}, r"encoder\.kind"),
        ({"encoder": None}, "encoder"),
        ({"encoder": {**ENCODER, "options": {}, "scaling": None, "kind": "other"}}, r"encoder\.kind"),
        ({"encoder": {**ENCODER, "options": [], "scaling": None}}, r"encoder\.options"),
        ({"encoder": {**ENCODER, "options": {}, "scaling": {"other": [1.0]}}}, r"encoder\.scaling"),
        ({"preparation": {}}, r"preparation\.image_size"),
        ({"preparation": {"image_size": 0, "channels": 3, "preprocessing": "unit"}}, r"preparation\.image_size"),
        ({"class_names": "ab"}, "class_names"),
        ({"class_names": [1]}, "class_names"),
        ({"about": ...}, "about"),
    ],
)  # fmt: skip
def test_manifests_that_are_wrong_are_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    folder = of_features().save(tmp_path / "model")
    rewrite(folder, **changes)
    with pytest.raises(ArtifactError, match=named):
        ModelFolder.load(folder)


def test_a_file_does_not_decide_what_else_is_read(tmp_path: Path) -> None:
    folder = of_features().save(tmp_path / "model")
    encoder = {**ENCODER, "kind": "name", "name": "timm:resnet18", "scaling": None}
    rewrite(folder, encoder={**encoder, "options": {"checkpoint_path": "x"}})
    with pytest.raises(ValueError, match="checkpoint_path"):
        ModelFolder.load(folder)


def test_only_a_model_is_replaced(tmp_path: Path) -> None:
    model = of_features()
    target = tmp_path / "model"
    target.mkdir()
    model.save(target)  # an empty folder is no loss
    with pytest.raises(FileExistsError, match="overwrite"):
        model.save(target)
    before = content(target)
    ModelFolder(model.lam, about={"second": True}).save(target, overwrite=True)
    assert content(target) != before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(FileExistsError, match="model"):
        model.save(mine, overwrite=True)
    with pytest.raises(FileExistsError, match="thesis"):
        model.save(mine / "thesis.txt", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model"]


def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = of_features()
    model.save(tmp_path / "model")
    before = content(tmp_path / "model")

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LAM, "save", interrupted)
    for name in ("other", "model"):
        with pytest.raises(KeyboardInterrupt):
            model.save(tmp_path / name, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert content(tmp_path / "model") == before


def test_a_folder_can_be_moved(tmp_path: Path) -> None:
    model = of_features()
    shutil.move(model.save(tmp_path / "a" / "model"), tmp_path / "b")
    assert ModelFolder.load(tmp_path / "b").lam.fingerprint() == model.lam.fingerprint()
    assert str(tmp_path) not in str(content(tmp_path / "b"))
