"""`lam train`: what each method leaves, going on after an interruption, and wrong settings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from filelock import FileLock

from laplacian_metric.data import load
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.training import loop
from laplacian_metric.training.single import SETTINGS, Settings, fitted
from tests.cli.running import lam, photos, refused, worked

SMALL: tuple[object, ...] = (
    *("train", "--data", "sample-fashion-mnist", "--encoder", "n-digit", "--dim", 3),
    *("--set", "network.options.digits=1", "--set", "data.limit=80", "--batch-size", 20, "--epochs", 2),
)


QUICK: tuple[object, ...] = (
    *("--encoder", "n-digit", "--dim", 3, "--batch-size", 20, "--epochs", 1),
    *("--set", "network.options.digits=1", "--set", "data.image_size=28"),
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 120 images in 4 classes."""
    return photos(tmp_path_factory.mktemp("train") / "photos", 30)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_maintained_posterior_is_a_model(tmp_path: Path) -> None:
    done = worked(
        *SMALL, "--method", "online-laplace", "--weight-decay", 1e-4, "--out", tmp_path / "m", "--json"
    )
    assert done.json()["kind"] == "model"
    assert done.json()["settings"]["training"]["epochs"] == 2
    assert names(tmp_path) == ["m"]
    model = ModelFolder.load(tmp_path / "m")
    assert model.lam.weight_decay == 1e-4
    images = load("sample-mnist", "test").floats()[:10]
    assert model.lam.embed(images).kappa.shape == (10,)
    manifests = [path.read_text() for path in (tmp_path / "m").rglob("*.json")]
    assert manifests
    assert all(str(tmp_path) not in text for text in manifests)


CONTENT: dict[str, Any] = {
    "data": {"train": "sample-fashion-mnist", "limit": 80},
    "network": {"name": "n-digit", "dim": 3, "options": {"digits": 1}},
    "training": {"epochs": 2, "batch_size": 20},
    "method": {"name": "laplace", "prior": 2.0},
}


def test_a_posterior_that_is_fitted_afterwards_is_a_model_of_images(tmp_path: Path) -> None:
    worked(*SMALL, "--method", "laplace", "--set", "method.prior=2.0", "--out", tmp_path / "m")
    model = ModelFolder.load(tmp_path / "m")
    assert not model.takes_features
    assert model.lam.prior_precision == 2.0
    # The same settings give the same in Python.
    result = fitted(Settings.of(CONTENT), tmp_path / "work", progress=False)
    images = result.validation.floats()
    torch.testing.assert_close(
        result.embedder.embed(images).kappa, model.lam.embed(images).kappa, rtol=1e-4, atol=0
    )


def test_an_encoder_without_a_posterior_is_fitted_next(tmp_path: Path, photographs: Path) -> None:
    done = worked(
        *("train", "--data", photographs, "--encoder", "fashion-mnist", "--dim", 3, "--epochs", 1),
        *("--method", "deterministic", "--batch-size", 48, "--out", tmp_path / "e"),
    )
    assert "lam fit --encoder fashion-mnist --weights" in done.out
    assert "on validation images, after the best epoch: recall@1 " in done.out
    assert names(tmp_path / "e") == ["encoder.safetensors"]
    assert Encoder.from_checkpoint(tmp_path / "e" / "encoder.safetensors").dim == 3
    weights = tmp_path / "e" / "encoder.safetensors"
    worked("fit", "--weights", weights, "--data", photographs, "--out", tmp_path / "m")
    assert names(tmp_path) == ["e", "m"]


@pytest.mark.parametrize("method", ["pfe", "ensemble"])
def test_what_a_model_folder_cannot_hold_is_kept_as_its_training(method: str, tmp_path: Path) -> None:
    done = worked(*SMALL, "--method", method, "--out", tmp_path / "m", "--json")
    assert done.json()["kind"] == "training"
    assert names(tmp_path) == ["m"]
    settings = Settings.of(json.loads((tmp_path / "m" / SETTINGS).read_text()))
    result = fitted(settings, tmp_path / "m", progress=False)
    inputs = (
        result.validation if result.carrier is None else result.carrier.features(result.validation.floats())
    )
    assert result.embedder.embed(inputs).kappa.shape == (80,)


def interrupt_after(epochs: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C in the epoch after so many, once; what comes back grows with every epoch."""
    validate, calls = loop.validate, []

    def once(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == epochs + 1:
            raise KeyboardInterrupt
        return validate(*arguments, **options)

    monkeypatch.setattr(loop, "validate", once)
    return calls


def test_an_interrupted_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*SMALL, "--method", "online-laplace", "--out")
    worked(*command, tmp_path / "whole")
    calls = interrupt_after(1, monkeypatch)
    done = lam(*command, tmp_path / "m")
    assert done.code == 130
    assert "run the same command again" in done.err
    assert names(tmp_path) == ["m.training", "whole"]
    worked(*command, tmp_path / "m")
    assert len(calls) == 3  # of the two epochs the second is trained again
    assert names(tmp_path) == ["m", "whole"]
    mine, theirs = (ModelFolder.load(tmp_path / name) for name in ("m", "whole"))
    assert mine.lam.fingerprint() == theirs.lam.fingerprint()


def test_other_settings_do_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*SMALL, "--method", "online-laplace", "--out", tmp_path / "m")
    with monkeypatch.context() as patched:
        interrupt_after(1, patched)
        assert lam(*command).code == 130
    said = refused(*command, "--margin", 0.5)
    assert "loss.margin" in said
    assert "--fresh" in said
    worked(*command, "--margin", 0.5, "--fresh")
    assert names(tmp_path) == ["m"]


@pytest.mark.parametrize("method", ["online-laplace", "laplace"])
def test_nothing_is_left_of_a_training_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    interrupt_after(0, monkeypatch)
    done = lam(*SMALL, "--method", method, "--out", tmp_path / "m")
    assert (done.code, done.err) == (130, "error: interrupted\n")
    assert names(tmp_path) == []


def test_wrong_images_are_refused_and_nothing_is_left(tmp_path: Path, photographs: Path) -> None:
    folder, (first, second) = tmp_path / "given", ("class 0", "class 1")
    (folder / "hollow" / "class").mkdir(parents=True)
    shutil.copytree(photographs / first, folder / "one" / first)
    for name in (first, second):
        shutil.copytree(photographs / name, folder / "cut" / name)
    for path in (folder / "cut" / first).iterdir():
        path.write_bytes(path.read_bytes()[:200])
    command = ("train", *QUICK, "--method", "laplace", "--out", tmp_path / "m", "--data")
    assert "hollow" in refused(*command, folder / "hollow")
    assert "class 0" in refused(*command, folder / "one")
    assert "--skip-broken" in refused(*command, folder / "cut")
    assert "class 1" in refused(*command, folder / "cut", "--skip-broken")
    assert names(tmp_path) == ["given"]


def test_broken_images_can_be_left_out(tmp_path: Path, photographs: Path) -> None:
    shutil.copytree(photographs, tmp_path / "photos")
    (tmp_path / "photos" / "class 0" / "000.png").write_bytes(b"no image")
    command = ("train", *QUICK, "--method", "deterministic", "--data", tmp_path / "photos")
    assert "does not decode" in refused(*command, "--out", tmp_path / "m")
    worked(*command, "--skip-broken", "--out", tmp_path / "m")
    assert names(tmp_path) == ["m", "photos"]


def test_images_without_labels(tmp_path: Path, photographs: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number, photo in enumerate(sorted(photographs.rglob("*.png"))[:60]):
        shutil.copy(photo, tmp_path / "photos" / f"{number}.png")
    command = ("train", *QUICK, "--data", tmp_path / "photos", "--set", "training.learning_rate=0.001")
    said = refused(*command, "--method", "nt-xent", "--out", tmp_path / "m")
    assert "labels=False" in said
    unlabelled = (*command, "--set", "data.options.labels=false")
    assert "folder for each class" in refused(*unlabelled, "--method", "triplet", "--out", tmp_path / "m")
    done = worked(*unlabelled, "--method", "nt-xent", "--out", tmp_path / "m")
    assert "validation images" not in done.out
    assert names(tmp_path / "m") == ["encoder.safetensors"]


def test_a_training_of_another_process(tmp_path: Path) -> None:
    (tmp_path / "m.training").mkdir()
    with FileLock(tmp_path / "m.training" / "lock"):
        said = refused(*SMALL, "--method", "online-laplace", "--out", tmp_path / "m")
    assert "another process is training in" in said


@pytest.mark.slow
def test_ctrl_c_in_a_shell(tmp_path: Path, root: Path) -> None:
    command = [sys.executable, "-m", "laplacian_metric.cli", *map(str, SMALL), "--method", "online-laplace"]
    command += ["--out", str(tmp_path / "m"), "--set", "training.epochs=500"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Where the tests run in the background of a shell, Ctrl-C is ignored, and so it would be here.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        log = tmp_path / "m.training" / "method" / "log.json"
        for _ in range(3000):
            if log.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert "run the same command again" in err
    assert names(tmp_path) == ["m.training"]


def test_a_configuration_and_flags(tmp_path: Path) -> None:
    content = {
        **CONTENT,
        "network": {"name": "n-digit", "dim": 2, "options": {"digits": 1}},
        "training": {"epochs": 5, "batch_size": 20, "learning_rate": 2e-3},
        "method": {"name": "online-laplace", "temperature": 0.5},
    }
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(content))
    done = worked(
        *(
            "train",
            "--config",
            tmp_path / "settings.yaml",
            "--epochs",
            1,
            "--method",
            "online-laplace",
            "--seed",
            3,
        ),
        *("--out", tmp_path / "m", "--json"),
    )
    settings = done.json()["settings"]
    assert settings["seed"] == 3
    assert settings["training"]["epochs"] == 1
    assert settings["training"]["learning_rate"] == 2e-3
    assert settings["method"]["temperature"] == 0.5
    assert settings["network"]["dim"] == 2


def test_wrong_settings_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("base: fashion_mnist/deterministic\nmethod: laplace\n")
    (tmp_path / "list.yaml").write_text("- a\n")
    begin: list[object] = ["--data", "sample-fashion-mnist", "--encoder", "fashion-mnist"]
    wrong: dict[str, list[object]] = {
        "data is missing": ["--method", "pfe", "--encoder", "fashion-mnist"],
        "method is missing": begin,
        "network is missing": ["--data", "sample-fashion-mnist", "--method", "pfe"],
        "did you mean 'ensemble'": [*begin, "--method", "emsemble"],
        "no data set is called": ["--data", "fashion", "--encoder", "fashion-mnist", "--method", "pfe"],
        "no encoder is called": ["--data", "sample-fashion-mnist", "--encoder", "resnet5", "--method", "pfe"],
        "'epoch'": [*begin, "--method", "pfe", "--set", "training.epoch=2"],
        "'temprature'": [*begin, "--method", "laplace", "--set", "method.temprature=2"],
        "KEY=VALUE": [*begin, "--method", "pfe", "--set", "training.epochs"],
        "learning_rate": [*begin, "--method", "pfe", "--learning-rate", "-1"],
        "'base'": ["--config", tmp_path / "other.yaml", *begin],
        "holds no mapping": ["--config", tmp_path / "list.yaml", *begin],
        "there is no file": ["--config", tmp_path / "none.yaml", *begin],
        "checkpoint_path": [*begin, "--method", "pfe", "--set", "network.options.checkpoint_path=x"],
    }
    for said, arguments in wrong.items():
        assert said in refused("train", *arguments, "--out", tmp_path / "m"), said
    assert names(tmp_path) == ["list.yaml", "other.yaml"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    assert "mine" in refused(*SMALL, "--method", "pfe", "--out", tmp_path / "mine", "--force")


def test_a_library_s_network_needs_a_dimension(tmp_path: Path, photographs: Path) -> None:
    arguments = ("train", "--data", photographs, "--encoder", "timm:resnet18", "--method", "laplace")
    assert "network.dim" in refused(*arguments, "--out", tmp_path / "m")
    assert not list(tmp_path.iterdir())
