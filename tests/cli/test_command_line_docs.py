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
    for seed, name in enumerate(("known", "held-out", "unseen", "fresh", "more")):
        rows, classes = clusters(500, spread=0.45, seed=seed)
        ids = np.arange(len(rows)) + 1000 * seed
        np.savez(f"{name}.npz", features=rows, labels=classes, ids=ids)
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
    promised = next(outcome for line, outcome in done.items() if "--guarantee" in line)
    assert "at most 20" in promised.out
    removed = next(outcome for line, outcome in done.items() if "--remove" in line)
    assert "999 items" in removed.out
    as_json = next(outcome for line, outcome in done.items() if line.endswith("--json"))
    assert {"probability", "verdict"} <= set(json.loads(as_json.out)["replies"][0])
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


def test_no_other_page_has_commands(root: Path) -> None:
    pages = {path.name for path in (root / "docs").rglob("*.md") if commands(path)}
    # Those of these pages need a server, a device or long: they are tried by other means, and tests/docs parses them.
    elsewhere = {"benchmark.md", "gpu.md", "serve.md"}
    assert pages - elsewhere == {"command_line.md", "existing_checkpoints.md"}
