"""The page about the command line: its sessions work as they stand."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Place
from tests.cli.running import Done, clusters, photos, worked
from tests.cli.test_common import COMMANDS
from tests.examples import miniatures
from tests.pages import code_blocks, run_page


@pytest.mark.slow
def test_the_sessions_of_the_page(
    tmp_path: Path, root: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = root / "docs" / "command_line.md"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place.photos, "photos")
    (tmp_path / "holiday").mkdir()
    for number, path in enumerate(sorted(place.digits.rglob("*.png"))):
        shutil.copy(path, tmp_path / "holiday" / f"{number}.png")
    photos(tmp_path / "held-out-photos", 20, split="test")
    shutil.copy(place.weights, "encoder.safetensors")
    features, labels = clusters(200, width=12)
    np.save("features.npy", features)
    np.save("labels.npy", labels)
    np.savez(
        "new.npz", features=clusters(100, width=12, seed=1)[0], labels=clusters(100, width=12, seed=1)[1]
    )
    for seed, name in enumerate(("known", "held-out", "unseen")):
        rows, classes = clusters(500, spread=0.45, seed=seed)
        np.savez(f"{name}.npz", features=rows, labels=classes)
    own, classes = clusters(120, width=12)
    np.savez("mine.npz", embeddings=own, labels=classes, uncertainty=np.arange(len(own)))
    np.save("ood.npy", -3 * np.ones((60, 6), dtype=np.float32) + clusters(60, seed=9)[0])
    (configuration,) = code_blocks(page, "yaml")
    Path("fit.yaml").write_text(configuration, encoding="utf-8")
    lines = [line for block in code_blocks(page, "sh") for line in block.splitlines()]
    done: dict[str, Done] = {}
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "lam"
        done[line] = worked(*arguments)
    assert {shlex.split(line)[1] for line in lines} == {*COMMANDS} - {
        "demo",
        "serve",
    }  # serve goes on until it is stopped
    # What the page says of them.
    trusted = next(outcome for line, outcome in done.items() if "trusted-index unseen" in line)
    assert "answers accepted" in trusted.out
    guaranteed = next(outcome for line, outcome in done.items() if "--guarantee" in line)
    assert "at most 30.0%" in guaranteed.out
    as_json = next(outcome for line, outcome in done.items() if line.endswith("--json"))
    assert len(json.loads(as_json.out)["replies"]) == 60
    assert Path("model-report", "report.html").stat().st_size > 100_000
    # Nothing else is said, but for how long it takes on a slow machine.
    harmless = ("warning", "this index", "training: ", "features: ", "head: ", "embeddings: ")
    assert all(not outcome.err or outcome.err.startswith(harmless) for outcome in done.values())
    run_page(page)


def test_the_page_names_every_command(root: Path) -> None:
    text = (root / "docs" / "command_line.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"| `lam {command}` |" in text


def commands(page: Path) -> list[list[str]]:
    """The `lam` commands in the blocks of a page, but for the README's, which CI runs."""
    lines = [line for block in code_blocks(page, "sh") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("lam ")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_first_page(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "torchvision", reason="torchvision is not installed, and the weights are of its network"
    )
    monkeypatch.chdir(tmp_path)
    miniatures.photos(tmp_path / "photos")
    miniatures.weights("resnet50", tmp_path).rename("resnet50.safetensors")
    fit, evaluate = commands(root / "docs" / "index.md")
    assert "18 images of 3 classes" in worked(*fit).out
    assert "recall@1" in worked(*evaluate).out


@pytest.mark.slow
def test_the_commands_about_a_threshold(
    tmp_path: Path, root: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place.model, "model")
    shutil.copytree(place.photos, "gallery")
    photos(tmp_path / "validation", 20, split="test")
    photos(tmp_path / "queries", 100, split="test")
    worked("embed", "model", "queries", "--out", "new.npz")
    index, query = commands(root / "docs" / "tutorials" / "threshold.md")
    assert "at most 30.0%" in worked(*index).out
    assert "of 400 answers accepted" in worked(*query).out


def test_no_other_page_has_commands(root: Path) -> None:
    pages = {path.name for path in (root / "docs").rglob("*.md") if commands(path)}
    # Those of these pages need a server, a device or long: they are tried by other means, and tests/docs parses them.
    elsewhere = {"benchmark.md", "gpu.md", "serve.md", "vector_databases.md"}
    assert pages - elsewhere == {"command_line.md", "existing_checkpoints.md", "index.md", "threshold.md"}
