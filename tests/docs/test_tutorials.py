"""The tutorials and the page on Trust: their code runs, and does what the text says."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.pages import code_blocks, run_page


@pytest.fixture
def page(root: Path) -> Any:
    def run(name: str) -> Any:
        return run_page(root / "docs" / f"{name}.md")

    return run


def test_every_tutorial_is_run(root: Path) -> None:
    pages = {path.stem for path in (root / "docs" / "tutorials").glob("*.md")}
    run = {
        "posthoc",
        "online",
        "layer_rule",
        "method",
        "data_set",
        "several_machines",
        "cluster",
    }
    assert pages == run


def test_whether_a_match_can_be_trusted(page: Any) -> None:
    names = page("trust")
    assert len(names["answer"]) == 1000
    assert set(names["answer"].verdict) <= {"accept", "unlike anything seen", "no reliable match"}
    sure, accepted = names["sure"], names["accepted"]
    wrong = accepted.labels != names["test"][1][names["later"]]
    assert sure.mean() > 0.5
    assert wrong[sure].mean() < 0.15 < wrong.mean()
    assert names["drift"].update([]).alarm  # of the digits
    assert not names["risk"].update([]).alarm
    assert names["trust"].note
    assert names["shop"].calibration_error is not None


def test_uncertainty_in_ten_lines(page: Any) -> None:
    names = page("tutorials/posthoc")
    assert names["e"].point.shape == (1000, 8)
    assert names["auroc"] > 0.8
    assert abs(names["right"].float().mean() - names["answer"].probability.mean()) < 0.06
    assert names["digits"].kappa.median() < names["e"].kappa.median() / 2


def test_while_the_network_is_trained(page: Any) -> None:
    names = page("tutorials/online")
    assert names["recall"] > 0.7
    assert names["errors"] > 0.55
    assert names["aurocs"]["low rank"] > 0.9
    assert 0.35 < names["aurocs"]["diagonal"] < 0.65


def test_a_rule_for_a_layer(page: Any) -> None:
    names = page("tutorials/layer_rule")
    assert "2.log_gain" in names["messages"].records[0].getMessage()
    assert not torch.allclose(names["found"], names["without"])  # another gain
    logging.getLogger("hessians").removeHandler(names["messages"])


def test_a_method_of_your_own(page: Any) -> None:
    names = page("tutorials/method")
    assert names["name"] == "laplace"
    e = names["embedder"].embed(names["test"].floats())
    assert (
        names["metrics"].ood_auroc(e.uncertainty, names["embedder"].embed(names["digits"]).uncertainty) > 0.7
    )
    with pytest.raises(ValueError, match="neighbours is 0"):
        names["Far"](neighbours=0)


def test_data_of_your_own(page: Any) -> None:
    names = page("tutorials/data_set")
    assert len(names["photos"]) == 60
    assert np.bincount(names["insects"].labels).tolist() == [2, 2, 2, 2]


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here")
def test_several_processes(root: Path, tmp_path: Path) -> None:
    """The program of the page under ``torchrun``, by the command of the page."""
    source = root / "docs" / "tutorials" / "several_machines.md"
    programs = {block.splitlines()[0].removeprefix("# "): block for block in code_blocks(source)}
    for name, code in programs.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    command = code_blocks(source, "sh")[0].split()
    assert command[0] == "torchrun"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    in_time([sys.executable, "-m", "torch.distributed.run", *command[1:]], tmp_path, environment)
    assert (tmp_path / "work" / "posterior").is_dir()


@pytest.mark.slow
def test_a_corpus_on_a_cluster(root: Path, tmp_path: Path) -> None:
    """The program of the page on a Ray of this machine, and once more, when all parts are there."""
    pytest.importorskip("ray.data", reason="ray shares the work among the machines")
    source = root / "docs" / "tutorials" / "cluster.md"
    (tmp_path / "corpus.py").write_text(code_blocks(source)[0], encoding="utf-8")
    command = [sys.executable, *code_blocks(source, "sh")[0].split()[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    assert "1000 rows in 4 parts, 0 of an earlier call" in in_time(command, tmp_path, environment)
    assert "1000 rows in 4 parts, 4 of an earlier call" in in_time(command, tmp_path, environment)


def in_time(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a command prints; whatever happens, none of the processes that it starts is left."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=600)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # torchrun takes its workers with it
            raise
    assert process.returncode == 0, errors[-3000:]
    return output
