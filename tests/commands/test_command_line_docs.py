"""The page about the command line: its sessions work as they stand."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.commands.conftest import Place
from tests.commands.running import Done, clusters, worked
from tests.commands.test_common import COMMANDS, PARTS
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
    shutil.copy(place.weights, "encoder.safetensors")
    features, labels = clusters(200, width=12)
    np.save("features.npy", features)
    np.save("labels.npy", labels)
    np.savez(
        "new.npz", features=clusters(100, width=12, seed=1)[0], labels=clusters(100, width=12, seed=1)[1]
    )
    (configuration,) = code_blocks(page, "yaml")
    Path("fit.yaml").write_text(configuration, encoding="utf-8")
    lines = [line for block in code_blocks(page, "sh") for line in block.splitlines()]
    done: dict[str, Done] = {}
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "lam"
        done[line] = worked(*arguments)
    assert {shlex.split(line)[1] for line in lines} == {*COMMANDS} - {"demo"}
    # What the page says of them.
    answered = next(found for line, found in done.items() if "--array" in line)
    assert "refused: its uncertainty" in answered.out
    promised = next(found for line, found in done.items() if "--calibrate" in line)
    assert "Promised: at most 30.0%" in promised.out
    asked = next(found for line, found in done.items() if line.endswith("--json"))
    assert len(json.loads(asked.out)["replies"]) == 1
    assert Path("model-report", "report.html").stat().st_size > 100_000
    assert all(not found.err or found.err.startswith(("warning", "this index")) for found in done.values())
    run_page(page)


def test_the_page_names_every_command(root: Path) -> None:
    text = (root / "docs" / "command_line.md").read_text(encoding="utf-8")
    for command in (*COMMANDS, *PARTS):
        assert f"| `lam {command}` |" in text
