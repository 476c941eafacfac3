"""A training that is killed again and again ends with the very bits of one that is not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import experiments.published  # noqa: F401 (a case trains as published)
from laplacian_metric.training import TrainingOptions, checkpoint, train
from tests.training.cases import (
    Case,
    assert_same_end,
    clusters,
    pictures,
    plain,
    timeless,
    train_and_die,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")

PAIRS = {"sampling": "pairs", "batch_size": 4, "steps_per_epoch": 6}
CASES = {
    "rmsprop": Case(),
    "rmsprop momentum": Case(options={"momentum": 0.9, "weight_decay": 0.01}),
    "adam": Case(options={"optimizer": "adam"}),
    "adamw": Case(options={"optimizer": "adamw", "clip_norm": 0.1}),
    "sgd": Case(options={"optimizer": "sgd", "momentum": 0.9, "schedule": "cosine"}),
    "global dropout": Case("plain", {"rate": 0.3}),
    "mc-dropout": Case("mc-dropout"),
    "swag": Case("swag"),
    "pfe": Case("pfe"),
    "hib": Case("hib"),
    "vmf": Case("vmf"),
    "online-laplace": Case("online-laplace", {"warmup": 2, "memory": 0.1}),
    "published online-laplace": Case("online-laplace", {"preset": "published"}, {"optimizer": "adam"}),
    "bfloat16": Case(options={"precision": "bfloat16"}),
    "balanced, mined": Case(
        options={
            "sampling": "balanced",
            "images_per_class": 2,
            "miner": "TripletMarginMiner",
            "miner_options": (("margin", 0.3), ("type_of_triplets", "semihard")),
        }
    ),
    "random miner": Case(options={"miner": "DistanceWeightedMiner"}),
    "online, mined": Case("online-laplace", {"warmup": 1}, {"miner": "MultiSimilarityMiner"}),
    "pairs": Case(options=PAIRS),
    "soft-contrastive, pairs": Case("soft-contrastive", {"normalize": False}, {**PAIRS, "optimizer": "adam"}),
    "hib, pairs": Case(
        "hib", {"normalize": False, "head": "linear", "components": 2}, {**PAIRS, "optimizer": "adam"}
    ),
    "augmented": Case("plain", {"rate": 0.3}, images=lambda: pictures(augmented=True)),
    "augmented, 2 workers": Case(
        "plain",
        {"rate": 0.3},
        images=lambda: pictures(augmented=True, workers=2),
        validation=lambda: pictures("validation", count=20),
    ),
}
# 44 images make 6 steps of an epoch, with checkpoints after 2 and 4 of them.
ALL_DEATHS = (
    ("step", 2),
    ("writing", 1),
    ("step", 4),
    ("writing", 2),
    ("log", 1),
    ("writing", 4),
    ("step", 8),
)


DEATHS = {"rmsprop": ALL_DEATHS, "online-laplace": ALL_DEATHS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "workers" in name else []) for name in CASES]
)
def test_a_killed_training_ends_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = case.run(tmp_path / "whole")
    for event, count in DEATHS.get(name, ALL_DEATHS[::3]):
        train_and_die(case, tmp_path / "killed", event, count)
    resumed = case.run(tmp_path / "killed")
    assert timeless(resumed.history) == timeless(whole.history)
    assert resumed.best_epoch == whole.best_epoch
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
    # Nothing that was half written is left.
    assert sorted(file.name for file in (tmp_path / "killed").iterdir()) == sorted(
        (checkpoint.BEST, checkpoint.LAST, checkpoint.LOG)
    )


PROGRAM = """
import sys, time
from pathlib import Path
import torch

import experiments.published  # noqa: F401 (a case trains as published)
torch.set_num_threads(1)
from tests.training.cases import Case
step = torch.optim.Optimizer.zero_grad
def slow(self, *args):
    time.sleep(0.02)
    step(self, *args)
torch.optim.Optimizer.zero_grad = slow
Case("mc-dropout", options={"epochs": 12}).run(Path(sys.argv[1]))
"""


def written(path: Path) -> int | None:
    """When a file was written; None before it was."""
    return path.stat().st_mtime_ns if path.exists() else None


@pytest.mark.slow
def test_another_interpreter_goes_on(tmp_path: Path, root: Path) -> None:
    whole = Case("mc-dropout", options={"epochs": 12})
    whole.run(tmp_path / "whole")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "killed")]
    checkpoint, moments = tmp_path / "killed" / "last.safetensors", random.Random(1)
    for _ in range(3):
        before = written(checkpoint)
        process = subprocess.Popen(command, cwd=root)
        # However fast the machine is: it got further than the one before it, and is not at its end.
        limit = time.monotonic() + 120
        while process.poll() is None and written(checkpoint) == before and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.1))
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, cwd=root, check=True, timeout=300)
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_more_epochs_are_as_if_there_had_been_so_many_from_the_start(tmp_path: Path) -> None:
    Case(options={"epochs": 2}).run(tmp_path / "longer")
    longer = Case(options={"epochs": 4}).run(tmp_path / "longer")
    Case(options={"epochs": 4}).run(tmp_path / "whole")
    assert len(longer.history) == 4
    assert_same_end(tmp_path / "longer", tmp_path / "whole")


def test_without_augmentation_checkpoints_may_be_written_more_or_less_often(tmp_path: Path) -> None:
    Case(options={"checkpoint_every": None}).run(tmp_path / "whole")
    train_and_die(Case(), tmp_path / "other", "step", 9)
    Case(options={"checkpoint_every": 3}).run(tmp_path / "other")
    assert_same_end(tmp_path / "other", tmp_path / "whole")


def test_a_finished_training_does_nothing_more_and_gives_the_same(tmp_path: Path) -> None:
    case = Case()
    first = case.run(tmp_path)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    again = case.run(tmp_path)
    assert again == first
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == files


class Stop(Exception):  # noqa: N818 (nothing is wrong)
    """The training is interrupted."""


@pytest.mark.parametrize(
    "method", ["deterministic", "swag", "pfe", "hib", "vmf", "online-laplace", "triplet", "btl", "plain"]
)
@pytest.mark.parametrize("step", [1, 4, 9])
def test_the_same_learner_goes_on_too(
    method: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: the learner that was interrupted, even in the first epoch, is given to the same call again."""
    case = Case(method, options={"checkpoint_every": None})
    options = case.training_options()
    learner, original, taken = case.learner(), torch.optim.RMSprop.step, []

    def interrupted(self: torch.optim.RMSprop, *args: object, **others: object) -> object:
        taken.append(None)
        if len(taken) == step:
            raise Stop
        return original(self, *args, **others)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.RMSprop, "step", interrupted)
        with pytest.raises(Stop):
            train(learner, case.images(), case.validation(), options, tmp_path / "twice", seed=5)
    train(learner, case.images(), case.validation(), options, tmp_path / "twice", seed=5)
    case.run(tmp_path / "whole")
    assert_same_end(tmp_path / "twice", tmp_path / "whole")


def test_a_learner_that_ends_before_its_first_checkpoint_is_what_it_was(tmp_path: Path) -> None:
    case = Case("swag", options={"learning_rate": 1e30, "checkpoint_every": None})
    learner = case.learner()
    before = checkpoint.embedding_tensors(learner)
    with pytest.raises((FloatingPointError, ValueError)):
        train(learner, case.images(), case.validation(), case.training_options(), tmp_path)
    after = checkpoint.embedding_tensors(learner)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list(tmp_path.iterdir())


def test_settings_may_change_where_nothing_was_trained_yet(tmp_path: Path) -> None:
    """Whoever is told to lower the learning rate can do so in the same folder."""
    with pytest.raises((FloatingPointError, ValueError)):  # the loss, or what is left of the embeddings
        Case(options={"learning_rate": 1e30, "checkpoint_every": None}).run(tmp_path / "some")
    Case().run(tmp_path / "some")
    Case().run(tmp_path / "whole")
    assert_same_end(tmp_path / "some", tmp_path / "whole")


def test_what_has_no_gradient_has_no_average_and_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TrainingOptions(epochs=3, batch_size=8, optimizer="adam", checkpoint_every=1)  # type: ignore[arg-type]

    def run(folder: Path) -> dict[str, torch.Tensor]:
        learner = plain()
        learner.module.register_parameter("unused", torch.nn.Parameter(torch.tensor(3.0)))
        learner.module[0][1].weight.requires_grad_(False)
        train(learner, clusters(), clusters(20, seed=1), options, folder)
        return checkpoint.read(folder / checkpoint.LAST)[0]

    whole = run(tmp_path / "whole")
    steps, zero_grad = [0], torch.optim.Optimizer.zero_grad

    def stop(self: torch.optim.Optimizer, *args: bool) -> None:
        steps[0] += 1
        if steps[0] == 9:
            raise Stop
        zero_grad(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.Optimizer, "zero_grad", stop)
        with pytest.raises(Stop):
            run(tmp_path / "stopped")
    stopped = run(tmp_path / "stopped")
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[key], stopped[key]) for key in whole)
    averaged = {key.split("/")[2] for key in whole if key.startswith("optimizer/")}
    assert averaged == {"0.1.bias", "0.2.weight", "0.2.bias", "1.weight", "1.bias"}
