"""Checkpoint files: nothing pickled, whole or not there, and refused by name where they do not fit."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hessians import Pairs
from laplacian_metric.core import tensor_file
from laplacian_metric.training import OtherRunError, checkpoint, load_best, train
from tests.training.cases import LOSS, Case, Plain, assert_same_end, clusters, plain, timeless

CASE = Case("online-laplace", {"warmup": 2})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    CASE.run(folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_all_files_are_safetensors_and_json(finished: Path) -> None:
    assert sorted(file.name for file in finished.iterdir()) == [
        "best.safetensors",
        "last.safetensors",
        "log.json",
    ]
    log = json.loads((finished / "log.json").read_text())
    tensors, identity, progress = checkpoint.read(finished / "last.safetensors")
    assert log["identity"] == identity
    assert log["epochs"] == progress.history
    assert identity["optimizer"] == "rmsprop"
    assert identity["seed"] == 5
    for file in finished.glob("*.safetensors"):
        assert b"torch._utils" not in file.read_bytes()
    kinds = {name.split("/")[0] for name in tensors}
    assert kinds == {"module", "learner", "optimizer", "random"}
    assert tensors["module/backbone.2.num_batches_tracked"].dtype == torch.int64
    best = checkpoint.read(finished / "best.safetensors")[0]
    assert {name.split("/")[0] for name in best} == {"module", "learner"}


def test_the_best_epoch_is_loaded_to_the_bit(finished: Path) -> None:
    learner = CASE.learner()
    load_best(learner, finished)
    tensors, _, progress = checkpoint.read(finished / "best.safetensors")
    assert progress.history[-1]["epoch"] == len(progress.history)
    again = checkpoint.embedding_tensors(learner)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def spoil(file: Path, how: str) -> None:
    content = file.read_bytes()
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how == "other":
        save_file({"weight": torch.ones(2)}, file)
    else:
        file.write_bytes(
            {
                "truncated": content[: len(content) // 2],
                "empty": b"",
                "text": b"these are no tensors at all",
                "header": content[:20] + b"\xff\xff" + content[22:],
            }[how]
        )


@pytest.mark.parametrize("how", ["truncated", "empty", "text", "header", "folder", "other"])
def test_a_damaged_file_is_named_with_the_remedy(folder: Path, how: str) -> None:
    for name, use in (
        ("last", lambda: CASE.run(folder)),
        ("best", lambda: load_best(CASE.learner(), folder)),
    ):
        spoil(folder / f"{name}.safetensors", how)
        with pytest.raises(ValueError, match=rf"{name}\.safetensors") as caught:
            use()
        assert not isinstance(caught.value, OtherRunError)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adam"}, "optimizer"),
        ({"learning_rate": 0.5}, "learning_rate"),
        (
            {"batch_size": 9, "precision": "bfloat16"},
            "batch_size.*precision",
        ),
        (
            {"miner": "AngularMiner", "miner_options": (("angle", 10),)},
            r"miner .*miner_options",
        ),
        ({"batch_size": 9, "momentum": 0.1, "decay": 0.3, "weight_decay": 1.0}, "and 1 more"),
    ],
)
def test_other_settings_are_refused_by_name(folder: Path, options: dict[str, Any], said: str) -> None:
    before = (folder / "last.safetensors").read_bytes()
    with pytest.raises(OtherRunError, match=said):
        Case(CASE.method, CASE.method_options, options).run(folder)
    assert (folder / "last.safetensors").read_bytes() == before


def test_another_seed_or_identity_is_refused(tmp_path: Path) -> None:
    case = Case(options={"epochs": 1})
    identity = {"sizes": (1, 2), "cell": {"name": "a", 3: None}}
    case.run(tmp_path, identity=identity)
    case.run(tmp_path, identity=identity)  # a tuple comes back as a list, and is the same
    for change, named in (
        ({"seed": 6, "identity": identity}, "seed"),
        ({"identity": {**identity, "sizes": (1, 3)}}, "sizes"),
        ({}, "cell"),
    ):
        with pytest.raises(OtherRunError, match=named):
            case.run(tmp_path, **change)
    with pytest.raises(TypeError, match="identity"):
        case.run(tmp_path, identity={"tensor": torch.ones(1)})


FEW = Case(options={"epochs": 1})


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (FEW, replace(FEW, images=lambda: clusters(40)), "images"),
        (FEW, replace(FEW, images=lambda: clusters().select(torch.arange(44).flip(0))), "images"),
        # Where images are chosen, checkpoints are part of the training.
        (
            Case("triplet", options={"checkpoint_every": 3}),
            Case("triplet", options={"checkpoint_every": None}),
            "checkpoint_every",
        ),
    ],
)
def test_another_training_is_refused(before: Case, after: Case, named: str, tmp_path: Path) -> None:
    before.run(tmp_path)
    with pytest.raises(OtherRunError, match=named):
        after.run(tmp_path)


@pytest.mark.parametrize(
    ("schedule", "free"), [("constant", True), ("exponential", True), ("cosine", False), ("step", False)]
)
def test_the_number_of_epochs_may_change_where_learning_rates_do_not(
    tmp_path: Path, schedule: str, free: bool
) -> None:
    Case(options={"epochs": 2, "schedule": schedule}).run(tmp_path)
    more = Case(options={"epochs": 3, "schedule": schedule, "patience": 3})
    if free:
        assert len(more.run(tmp_path).history) == 3
    else:
        with pytest.raises(OtherRunError, match="epochs"):
            more.run(tmp_path)
    assert (
        len(Case(options={"epochs": 2, "schedule": schedule, "patience": 5}).run(tmp_path).history)
        == 2 + free
    )


def test_another_network_or_method_is_refused(folder: Path) -> None:
    learner = CASE.learner()
    learner.module.head.weight = nn.Parameter(torch.ones(2, 8))  # type: ignore[union-attr]
    learner.module.head.bias = nn.Parameter(torch.ones(2))  # type: ignore[union-attr]
    with pytest.raises(OtherRunError, match=r"best\.safetensors"):
        load_best(learner, folder)
    with pytest.raises(OtherRunError, match=r"last\.safetensors"):
        Case().run(folder)


def test_a_run_on_a_gpu_is_not_gone_on_with_on_the_processor(folder: Path) -> None:
    tensors, identity, progress = checkpoint.read(folder / "last.safetensors")
    tensors["random/cuda/0"] = torch.zeros(16, dtype=torch.uint8)
    checkpoint.save(folder / "last.safetensors", tensors, identity, progress)
    with pytest.raises(OtherRunError, match="GPU"):
        CASE.run(folder)


# --- what a disk does ---


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("at", [1, 3, 4, 7])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The first of the writes of an epoch are two in its middle, then the best epoch, then the last."""
    calls, save = [0], tensor_file.save

    def sometimes(*args: Any, **kwargs: Any) -> None:
        calls[0] += 1
        (full if calls[0] >= at else save)(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(tensor_file, "save", sometimes)
        with pytest.raises(OSError, match="safetensors"):
            CASE.run(tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".tmp")]
    assert (tmp_path / "last.safetensors").exists() == (at > 1)
    if at > 1:
        checkpoint.read(tmp_path / "last.safetensors")
    CASE.run(tmp_path)
    assert_same_end(tmp_path, finished)


def test_a_folder_that_cannot_be_written_is_noticed_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    learner = plain()
    before = learner.module[1].weight.clone()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            train(learner, clusters(), clusters(20), CASE.training_options(), folder)
    assert torch.equal(learner.module[1].weight, before)


# --- modules of all kinds ---


class Odd(nn.Module):
    """Tied weights, buffers of other types, one of no size, one that is not kept, and weights across memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.across = nn.Parameter(torch.randn(3, 6).T.contiguous().T)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("lower", torch.ones(2, dtype=torch.bfloat16))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return self.scale * self.tied(self.first(x).tanh()) @ self.across.T + 0.1


class OddLearner(Plain):
    def loss(self, inputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return LOSS(self.module(inputs), Pairs.from_labels(labels))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_tied_weights_and_odd_buffers(tmp_path: Path, optimizer: str) -> None:
    def run(folder: Path, epochs: int) -> tuple[OddLearner, list[dict[str, Any]]]:
        torch.manual_seed(0)
        learner = OddLearner(Odd())
        options = Case(options={"optimizer": optimizer, "momentum": 0.9, "epochs": epochs}).training_options()
        return learner, timeless(train(learner, clusters(), clusters(20, seed=1), options, folder).history)

    run(tmp_path / "parts", 1)
    parts, history = run(tmp_path / "parts", 3)
    _, expected = run(tmp_path / "whole", 3)
    assert history == expected
    assert_same_end(tmp_path / "parts", tmp_path / "whole")
    assert parts.module.tied.weight is parts.module.first.weight
    assert int(parts.module.count) == 18
    assert parts.module.lower.dtype == torch.bfloat16
    again = OddLearner(Odd())
    load_best(again, tmp_path / "parts")
    assert again.module.tied.weight is again.module.first.weight
