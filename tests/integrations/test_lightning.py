"""The callback: what it trains and what it takes in are those of OnlineLAM, and it resumes."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import Encoder, OnlineLAM
from laplacian_metric.integrations.lightning import OnlineLAMCallback
from laplacian_metric.laplace.posthoc import NotFittedError

pl = pytest.importorskip(
    "lightning.pytorch", reason='lightning is not installed: pip install "laplacian-metric[lightning]"'
)
pytestmark = pytest.mark.filterwarnings("ignore")

LOSS = ContrastiveLoss(margin=0.7)
OPTIONS: dict[str, Any] = {"memory": 0.1, "warmup": 3}


def data() -> TensorDataset:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 4
    return TensorDataset(nn.functional.one_hot(labels, 6) + 0.5 * torch.randn(80, 6, generator=g), labels)


def network() -> Encoder:
    torch.manual_seed(0)
    return Encoder(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()), nn.Linear(16, 3))


def adam(encoder: Encoder) -> torch.optim.Optimizer:
    return torch.optim.Adam(encoder.parameters(), lr=1e-2, weight_decay=1e-4)


class Module(pl.LightningModule):
    """Trained by the callback's loss, or by a loss of its own."""

    def __init__(self, online: OnlineLAMCallback | None = None) -> None:
        super().__init__()
        self.encoder, self.online = network(), online

    def training_step(self, batch: Any, index: int) -> Tensor:
        images, labels = batch
        if self.online is not None:
            return self.online.loss(images, labels)
        return LOSS(self.encoder.raw(images), Pairs.from_labels(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam(self.encoder)


def fit(
    module: Module, *callbacks: Any, epochs: int = 2, checkpoint: Path | None = None, loader: Any = None
) -> Any:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(
            module, DataLoader(data(), batch_size=20) if loader is None else loader, ckpt_path=checkpoint
        )
    return trainer


def assert_same(actual: OnlineLAM, expected: OnlineLAM) -> None:
    assert actual.steps == expected.steps
    for name, tensor in expected.running_state().items():
        torch.testing.assert_close(actual.running_state()[name], tensor, rtol=0, atol=0)
    assert actual.encoder.fingerprint() == expected.encoder.fingerprint()


def test_training_at_draws_is_that_of_online_lam() -> None:
    callback = OnlineLAMCallback(LOSS, **OPTIONS)
    module = Module(callback)
    fit(module, callback)
    encoder = network()
    plain = OnlineLAM(encoder, adam(encoder), LOSS, num_images=80, **OPTIONS)
    for _ in range(2):
        for batch in DataLoader(data(), batch_size=20):
            plain.step(*batch)
    assert_same(callback.online, plain)
    images = data().tensors[0]
    torch.testing.assert_close(
        callback.posterior().embed(images).kappa, plain.posterior().embed(images).kappa
    )


def test_beside_a_training_of_its_own_it_changes_nothing_and_takes_every_batch_in() -> None:
    callback = OnlineLAMCallback(LOSS, **OPTIONS)
    module, alone = Module(), Module()
    fit(module, callback)
    fit(alone)
    assert module.encoder.fingerprint() == alone.encoder.fingerprint()

    encoder = network()
    optimizer = adam(encoder)
    plain = OnlineLAM(encoder, optimizer, LOSS, num_images=80, **OPTIONS)
    for _ in range(2):
        for images, labels in DataLoader(data(), batch_size=20):
            optimizer.zero_grad()
            LOSS(encoder.train().raw(images), Pairs.from_labels(labels)).backward()
            optimizer.step()
            encoder.eval()
            plain.loss(images, labels)
    assert_same(callback.online, plain)
    assert all(part.training for part in module.encoder.modules())


@pytest.mark.parametrize("at_draws", [True, False])
def test_a_resumed_training_is_one_that_was_not_interrupted(at_draws: bool, tmp_path: Path) -> None:
    def run(epochs: int, checkpoint: Path | None = None) -> tuple[Any, OnlineLAM]:
        callback = OnlineLAMCallback(LOSS, **OPTIONS)
        trainer = fit(Module(callback if at_draws else None), callback, epochs=epochs, checkpoint=checkpoint)
        return trainer, callback.online

    _, whole = run(3)
    first, _ = run(1)
    first.save_checkpoint(tmp_path / "first.ckpt")
    _, resumed = run(3, tmp_path / "first.ckpt")
    assert_same(resumed, whole)

    other = OnlineLAMCallback(LOSS, memory=0.2, warmup=3)
    with pytest.raises(ValueError, match=r"other settings: memory is 0\.2 here and 0\.1 there"):
        fit(Module(), other, epochs=3, checkpoint=tmp_path / "first.ckpt")


def test_a_state_that_was_loaded_and_not_yet_used_is_saved_again() -> None:
    callback = OnlineLAMCallback(LOSS)
    assert callback.state_dict() == {}
    callback.load_state_dict({"settings": {}, "running": {}, "generator": None})
    assert set(callback.state_dict()) == {"settings", "running", "generator"}


def test_where_things_are() -> None:
    class Other(Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrapped = nn.ModuleDict({"network": self.encoder})

        def training_step(self, batch: Any, index: int) -> Tensor:
            return super().training_step((batch["x"], batch["y"]), index)

    dataset = [{"x": x, "y": y} for x, y in data()]
    callback = OnlineLAMCallback(
        LOSS,
        encoder=lambda module: module.wrapped["network"],
        unpack=lambda batch: (batch["x"], batch["y"]),
        num_images=7,
    )
    fit(Other(), callback, epochs=1, loader=DataLoader(dataset, batch_size=20))  # type: ignore[arg-type]
    assert (callback.online.steps, callback.online.num_images) == (4, 7)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(data())


class Half(Module):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.encoder.backbone.parameters())


def stream() -> Any:
    return DataLoader(Stream(), batch_size=20)


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: OnlineLAMCallback(LOSS).posterior(), NotFittedError, "callbacks"),
        (lambda: fit(Module(), OnlineLAMCallback(LOSS, encoder="online")), TypeError, "encoder"),
        (
            lambda: fit(Module(), OnlineLAMCallback(LOSS, encoder=lambda m: m.encoder.head)),
            TypeError,
            "encoder",
        ),
        (lambda: fit(Module(), OnlineLAMCallback(LOSS), loader=stream()), ValueError, "num_images"),
        (lambda: fit(Half(), OnlineLAMCallback(LOSS)), ValueError, "configure_optimizers"),
    ],
)
def test_bad_inputs(call: Any, error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=argument):
        call()


def test_a_stream_of_batches_needs_no_number_of_images() -> None:
    callback = OnlineLAMCallback(LOSS, n_effective=80.0)
    fit(Module(), callback, epochs=1, loader=stream())
    assert callback.online.n_effective == 80.0
