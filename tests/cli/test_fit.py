"""`lam fit`: images and features, heads and priors, and everything that can be wrong with them."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from hessians import ContrastiveLoss
from laplacian_metric import LAM
from laplacian_metric.cli import fit
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.data import Preparation, load
from laplacian_metric.data.opening import Opening, divided, open_both, open_source
from laplacian_metric.encoder import Encoder, identity_head, save_encoder, whitening_head
from laplacian_metric.encoder.zoo import preparation_for
from laplacian_metric.laplace import fit_model as fitting
from laplacian_metric.laplace.diagnostics import CurvatureWarning
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.laplace.model_folder import ModelFolder
from tests.cli.conftest import Place
from tests.cli.running import clusters, lam, photos, refused, worked
from tests.manifests import content


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_of_images_is_the_posterior_of_its_training_part(place: Place) -> None:
    model = ModelFolder.load(place.model)
    data = load("folder", "train", path=place.photos, image_size=28, channels=1, preprocessing="unit")
    expected = LAM(model.encoder, ContrastiveLoss(margin=0.7, negatives="active"))
    expected.fit([(data.floats(), data.labels)], check_mode=False).optimize_prior_precision()
    assert model.lam.prior_precision == pytest.approx(expected.prior_precision, rel=1e-3)
    assert model.about["data"] == {
        "train": "photos:train",
        "images": 96,
        "classes": 4,
        "validation": "photos:validation",
        "validation_images": 12,
    }
    assert model.class_names == tuple(f"class {label}" for label in range(4))
    images = data.floats()[:9]
    embedded = model.lam.embed(images)
    torch.testing.assert_close(embedded.kappa, expected.embed(images).kappa, rtol=1e-2, atol=0)
    assert str(place.root) not in str(content(place.model))


def test_features_are_divided_and_their_posterior_is_as_by_hand(place: Place) -> None:
    model = ModelFolder.load(place.flat_model)
    features, labels = clusters(400)
    source = open_source(str(place.features), Opening(None))
    train, held_out = divided(source, "images")
    # The fifth of ten rows of every class validates.
    rank = np.zeros(400, dtype=int)
    for label in range(4):
        rows = np.flatnonzero(labels == label)
        rank[rows] = np.arange(len(rows)) % 10
    assert [int(one) for one in held_out.ids] == np.flatnonzero(rank == 4).tolist()
    kept = torch.from_numpy(features[rank != 4])
    expected = LAM(model.encoder, model.lam.loss, structure="lowrank", rank=5)
    expected.prior_precision = model.lam.prior_precision
    expected.fit_features(
        kept,
        torch.from_numpy(labels[rank != 4]),
        generator=torch.Generator().manual_seed(0),
        check_mode=False,
    )
    torch.testing.assert_close(
        model.lam.embed_features(kept).kappa, expected.embed_features(kept).kappa, rtol=1e-3, atol=0
    )
    assert model.seen["train"].shape == (len(train),)
    with pytest.raises(ValueError, match="too few rows"):
        divided(source.select(torch.arange(12)), "images")
    held_classes = set(
        divided(open_source(str(place.features), Opening(None)), "images")[1].known_labels().tolist()
    )
    assert held_classes == {0, 1, 2, 3}


def test_the_model_keeps_trust_and_says_how_right_validation_images_are(place: Place) -> None:
    model = ModelFolder.load(place.flat_model)
    train, held_out = divided(open_source(str(place.features), Opening(None)), "images")
    assert model.trust is not None
    points, items = (model.lam.embed_features(part.features).point for part in (held_out, train))
    right = train.labels[(points @ items.T).argmax(dim=1)] == held_out.labels
    measured = model.about["validation"]
    assert measured["recall@1"] == pytest.approx(float(right.double().mean()))
    assert (measured["queries"], measured["left_out"]) == (40, 0)
    assert measured["calibration_error"] == vars(model.trust.calibration_error)
    answer = model.trust(held_out.features)
    assert np.mean(answer.labels == held_out.label_names) == measured["recall@1"]


def test_trust_is_left_out_where_nobody_can_calibrate_it(tmp_path: Path, place: Place) -> None:
    assert ModelFolder.load(place.model).trust is None  # 12 validation images
    done = worked(
        "fit", "--features", place.features, "--no-calibrate", "--prior", 3, "--out", tmp_path / "m"
    )
    assert ModelFolder.load(tmp_path / "m").trust is None
    assert "left out" in done.out


def test_whole_classes_can_be_held_out(tmp_path: Path) -> None:
    features, labels = clusters(200, classes=10, width=12)
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    train, held_out = divided(open_source(str(tmp_path / "f.npz"), Opening(None)), "classes")
    assert sorted(set(held_out.label_names.tolist())) == ["4", "9"]
    assert set(train.label_names.tolist()).isdisjoint(held_out.label_names.tolist())


@pytest.mark.parametrize("head", ["identity", "whitening", "trained"])
def test_heads_of_features(tmp_path: Path, place: Place, head: str) -> None:
    more = ["--steps", 20, "--dim", 3] if head == "trained" else []
    worked("fit", "--features", place.features, "--head", head, *more, "--out", tmp_path / "m", "--prior", 10)
    model = ModelFolder.load(tmp_path / "m")
    assert model.lam.prior_precision == 10
    train, _ = divided(open_source(str(place.features), Opening(None)), "images")
    assert train.holds_features
    if head == "identity":
        assert torch.equal(model.encoder.head.weight, identity_head(6).weight)
    elif head == "whitening":
        torch.testing.assert_close(model.encoder.head.weight, whitening_head(train.inputs, 6).weight)
    else:
        assert model.encoder.dim == 3


def test_labels_beside_features_in_every_format(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    features, labels = clusters(100)
    words = np.array(["ant", "bee", "cat", "dog"])[labels]
    np.save(tmp_path / "f.npy", features.astype(np.float64))
    np.save(tmp_path / "l.npy", words)
    save_file({"features": features}, tmp_path / "f.safetensors")
    save_file({"labels": labels}, tmp_path / "l.safetensors")
    priors = {}
    for kind in ("npy", "safetensors"):
        done = worked(
            *(
                "fit",
                "--features",
                tmp_path / f"f.{kind}",
                "--labels",
                tmp_path / f"l.{kind}",
                "--head",
                "identity",
            ),
            *("--out", tmp_path / kind, "--json"),
        )
        priors[kind] = done.json()["settings"]["prior_precision"]
    assert priors["npy"] == priors["safetensors"]
    assert ModelFolder.load(tmp_path / "npy").class_names == ("ant", "bee", "cat", "dog")


def test_weights_of_a_backbone_get_a_trained_head(tmp_path: Path, place: Place) -> None:
    from safetensors.torch import load_file, save_file

    backbone = {name: x for name, x in load_file(place.weights).items() if not name.startswith("head.")}
    save_file(backbone, tmp_path / "backbone.safetensors")
    arguments = (
        "fit",
        "--encoder",
        "fashion-mnist",
        "--data",
        place.photos,
        "--out",
        tmp_path / "m",
        "--steps",
        5,
    )
    said = refused(*arguments, "--weights", tmp_path / "backbone.safetensors", "--head", "keep")
    assert "no head to keep" in said
    worked(*arguments, "--weights", tmp_path / "backbone.safetensors", "--dim", 5)
    model = ModelFolder.load(tmp_path / "m")
    assert model.encoder.dim == 5
    for name, tensor in backbone.items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)


def test_a_head_of_another_size_than_the_default_is_kept(tmp_path: Path, place: Place) -> None:
    encoder = Encoder.from_name("fashion-mnist", dim=7, seed=0)
    save_encoder(encoder, tmp_path / "e.safetensors")
    arguments = ("fit", "--encoder", "fashion-mnist", "--weights", tmp_path / "e.safetensors")
    worked(*arguments, "--data", place.photos, "--out", tmp_path / "m")
    model = ModelFolder.load(tmp_path / "m")
    assert model.about["settings"]["head"] == "keep"
    assert torch.equal(model.encoder.head.weight, encoder.head.weight)


def test_features_are_kept_and_taken_up_again(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "photos"
    shutil.copytree(place.photos, copy)
    arguments = (
        "fit",
        "--weights",
        place.weights,
        "--data",
        copy,
        "--cache",
        tmp_path / "cache",
        "--batch-size",
        24,
    )
    (copy / "class 3" / "000.png").write_bytes(b"no image")
    said = refused(*arguments, "--out", tmp_path / "m")
    assert "class 3/000.png" in said
    assert "--skip-broken" in said
    assert names(tmp_path) == ["cache", "photos"]
    shutil.copy(place.photos / "class 3" / "000.png", copy / "class 3" / "000.png")
    passes: list[int] = []
    features = Encoder.features

    def counted(self: Encoder, *inputs: Any, **named: Any) -> torch.Tensor:
        passes.append(len(inputs[0]))
        return features(self, *inputs, **named)

    monkeypatch.setattr(Encoder, "features", counted)
    worked(*arguments, "--out", tmp_path / "m")
    # The first batch shows that it is the same encoder, the fourth was missing, and the last validates.
    assert passes == [24, 24, 12]
    mine, theirs = (ModelFolder.load(folder) for folder in (tmp_path / "m", place.model))
    assert mine.lam.prior_precision == pytest.approx(theirs.lam.prior_precision, rel=1e-4)


def test_an_interruption_leaves_nothing(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LAM, "optimize_prior_precision", interrupted)
    done = lam("fit", "--features", place.features, "--head", "identity", "--out", tmp_path / "m")
    assert done.code == 130
    assert "interrupted" in done.err
    assert names(tmp_path) == []


def test_a_configuration_and_flags(tmp_path: Path, place: Place) -> None:
    config = {"features": str(place.features), "head": "identity", "prior": 3, "rank": 7}
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    done = worked("fit", "--config", tmp_path / "c.yaml", "--prior", 4, "--out", tmp_path / "m", "--json")
    assert done.json()["settings"]["prior_precision"] == 4
    assert done.json()["settings"]["rank"] == 7
    (tmp_path / "c.yaml").write_text("fetures: x\n")
    done = lam("fit", "--config", tmp_path / "c.yaml", "--out", tmp_path / "n")
    assert done.code == 2
    assert "did you mean" in done.err
    (tmp_path / "c.yaml").write_text("a: [1\n")
    assert "c.yaml" in refused("fit", "--config", tmp_path / "c.yaml", "--out", tmp_path / "n")
    assert "none.yaml" in refused("fit", "--config", tmp_path / "none.yaml", "--out", tmp_path / "n")


def bad_arrays(folder: Path) -> dict[str, list[object]]:
    """Everything that can be wrong with features: what is said, and the options."""
    features, labels = clusters(50)
    holes = features.copy()
    holes[3, 1] = np.nan
    files: dict[str, Any] = {
        "f": features,
        "l": labels,
        "nan": holes,
        "short": labels[:40],
        "one": 0 * labels,
    }
    files |= {"flat": features[0], "real": labels + 0.5, "none": features[:0]}
    for name, array in files.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "whole.npz", features=features, labels=labels)
    np.savez(folder / "other.npz", a=features, b=labels)
    (folder / "cut.npz").write_bytes((folder / "whole.npz").read_bytes()[:600])
    (folder / "cut.npy").write_bytes((folder / "f.npy").read_bytes()[:300])
    (folder / "text.safetensors").write_text("hello")
    np.save(folder / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)

    def from_features(features: str, labels: str = "l.npy") -> list[object]:
        return ["--features", folder / features, "--labels", folder / labels]

    return {
        "there is no file": from_features("nothing.npy"),
        "cut.npz is damaged": from_features("cut.npz"),
        "cut.npy is damaged": from_features("cut.npy"),
        "no safetensors file": from_features("text.safetensors"),
        "holds objects of Python": from_features("objects.npy"),
        "no array 'features', it has: a, b": from_features("other.npz"),
        "row 3": from_features("nan.npy"),
        "40 entries for 50 images": from_features("f.npy", "short.npy"),
        "needs at least 2 classes": from_features("f.npy", "one.npy"),
        "shape (6,)": from_features("flat.npy"),
        "nothing in it": from_features("none.npy"),
        "dtype float64": from_features("f.npy", "real.npy"),
        "pass --labels FILE": ["--features", folder / "f.npy"],
        "is no folder or file": ["--features", "elsewhere"],
        "leave --encoder": [*from_features("f.npy"), "--encoder", "fashion-mnist"],
        "has its own": [*from_features("f.npy"), "--head", "identity", "--dim", 3],
        "no head to keep": [*from_features("f.npy"), "--head", "keep"],
        "prior": [*from_features("f.npy"), "--prior", "best"],
        "'-1'": [*from_features("f.npy"), "--prior", "-1"],
        "1 to 6 principal components": [*from_features("f.npy"), "--head", "whitening", "--dim", 9],
        "pass either --data": [],
    }


def test_wrong_features_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    for said, arguments in bad_arrays(arrays).items():
        assert said in refused("fit", *arguments, "--out", tmp_path / "m"), said
    assert names(tmp_path) == ["arrays"]


def bad_images(folder: Path, place: Place) -> dict[str, list[object]]:
    """Everything that can be wrong with images and weights."""
    (folder / "empty").mkdir()
    (folder / "hollow" / "class").mkdir(parents=True)
    shutil.copytree(place.photos / "class 0", folder / "one" / "class 0")
    shutil.copytree(place.photos, folder / "notes")
    (folder / "notes" / "class 1" / "notes.txt").write_text("taken in May")
    photos(folder / "few", 3)
    (folder / "cut.safetensors").write_bytes(place.weights.read_bytes()[:5000])
    (folder / "text.pt").write_text("weights")
    save_encoder(Encoder.from_name("n-digit", dim=2, digits=1), folder / "unnamed.safetensors")
    weights: list[object] = ["--weights", place.weights]

    def from_images(data: object, *more: object) -> list[object]:
        return [*weights, "--data", data, *more]

    return {
        "has no class folders": from_images(folder / "empty"),
        "hollow/class has no images": from_images(folder / "hollow"),
        "needs at least 2 classes": from_images(folder / "one"),
        "notes.txt is no image": from_images(folder / "notes"),
        "too few images": from_images(folder / "few", "--calibrate"),
        "fashion-mnits": from_images("fashion-mnits"),
        "no split 'trian'": from_images(f"{place.photos}:trian"),
        "are test images": from_images(f"{place.photos}:test"),
        "test are test images": from_images("sample-mnist"),
        "which must choose nothing": from_images(place.photos, "--validation", f"{place.photos}:test"),
        "nothing was loaded": ["--encoder", "cifar-10", *from_images(place.photos)],
        "no encoder is called 'fasion'": ["--encoder", "fasion", *from_images(place.photos)],
        "no whole safetensors": ["--weights", folder / "cut.safetensors", "--data", place.photos],
        "text.pt": [
            "--encoder",
            "fashion-mnist",
            "--weights",
            folder / "text.pt",
            "--data",
            place.photos,
        ],
        "does not say what its weights are of": [
            "--weights",
            folder / "unnamed.safetensors",
            "--data",
            place.photos,
        ],
        "fashion-mnist has no weights": ["--encoder", "fashion-mnist", "--data", place.photos],
        "no encoder is named": ["--data", place.photos],
        "pass one of them": [*from_images(place.photos), "--pretrained"],
        "there are no weights to download": ["--encoder", "cifar-10", "--pretrained", "--data", place.photos],
        "checkpoint_path": [*from_images(place.photos), "--encoder-option", "checkpoint_path=x.pt"],
        "KEY=VALUE": [*from_images(place.photos), "--encoder-option", "digits"],
    }


def test_wrong_images_and_weights_are_refused_and_nothing_is_left(tmp_path: Path, place: Place) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    for said, arguments in bad_images(folder, place).items():
        assert said in refused("fit", *arguments, "--out", tmp_path / "m"), said
    worked(
        *("fit", "--weights", place.weights, "--data", folder / "notes", "--skip-broken"),
        *("--out", tmp_path / "m"),
    )
    assert names(tmp_path) == ["given", "m"]


def test_what_is_there_is_kept_unless_it_is_a_model(tmp_path: Path, place: Place) -> None:
    arguments = ("fit", "--features", place.features, "--head", "identity", "--out")
    worked(*arguments, tmp_path / "m")
    assert "--force" in refused(*arguments, tmp_path / "m")
    worked(*arguments, tmp_path / "m", "--force")
    assert "no model" in refused(*arguments, place.photos, "--force")
    assert "is a file" in refused(*arguments, place.weights, "--force")


def test_a_folder_without_validation_images_gives_some_of_its_training_images(tmp_path: Path) -> None:
    photos(tmp_path / "p" / "train", 20)
    photos(tmp_path / "p" / "test", 5)
    how = Opening(Preparation(28, 1, "unit"))
    train, held_out = open_both(str(tmp_path / "p"), how, None, needed=True)
    assert held_out is not None
    assert (len(train), len(held_out)) == (72, 8)
    assert all(name.startswith("train/") for name in (*train.ids, *held_out.ids))


def test_images_are_prepared_as_networks_need_them() -> None:
    assert preparation_for("fashion-mnist") == Preparation(28, 1, "unit")
    assert preparation_for("timm:resnet18") == Preparation(224, 3, "unit")
    assert preparation_for("cifar-10", image_size=40) == Preparation(40, 3, "unit")
    assert preparation_for("n-digit") == Preparation(None, 1, "unit")


def test_choices_are_those_of_the_library() -> None:
    from hessians.approximations import Approximation
    from hessians.contrastive import Distance

    hints = get_type_hints(fit.Posterior)
    for name, choices in (("structure", Structure), ("approximation", Approximation), ("distance", Distance)):
        assert set(get_args(hints[name])) == {one.value for one in choices}
    assert set(get_args(get_args(hints["head"])[0])) == {"keep", "trained", "whitening", "identity"}
    assert set(hints) <= {field.name for field in fields(fitting.FitOptions)}


def test_a_fit_can_be_called_from_python() -> None:
    features, labels = clusters(120)
    source = Dataset(features, labels, name="mine", class_names=tuple("abcd"))
    with pytest.warns(CurvatureWarning, match="no mode"):
        assert fitting.fit_model(source, None, fitting.FitOptions(head="identity")).trust is None
    with pytest.warns(CurvatureWarning), pytest.raises(ValueError, match="validation images are needed"):
        fitting.fit_model(source, None, fitting.FitOptions(head="identity", calibrate=True))


def test_a_classifier_is_cut_off_unless_it_is_to_be_kept(tmp_path: Path, place: Place) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet18", num_classes=12).state_dict(), tmp_path / "resnet18.pth")
    arguments: tuple[object, ...] = (
        "fit",
        "--encoder",
        "timm:resnet18",
        "--weights",
        tmp_path / "resnet18.pth",
    )
    arguments += ("--encoder-option", "num_classes=12", "--data", place.digits, "--image-size", 64)
    arguments += ("--steps", 2, "--prior", 1.0)
    worked(*arguments, "--out", tmp_path / "cut")
    model = ModelFolder.load(tmp_path / "cut")
    assert (model.encoder.dim, model.about["settings"]["head"]) == (64, "trained")
    worked(*arguments, "--head", "keep", "--out", tmp_path / "kept")
    assert ModelFolder.load(tmp_path / "kept").encoder.dim == 12


def test_too_few_images_to_calibrate_on_are_refused_before_anything_is_computed(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "features_of", lambda *_: pytest.fail("features were computed"))
    said = refused(
        *("fit", "--weights", place.weights, "--data", place.photos, "--calibrate", "--out", tmp_path / "m")
    )
    assert "12 images" in said
    assert "--validation" in said
