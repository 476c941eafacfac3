"""Lightning: a callback that keeps the posterior over the last layer up while a LightningModule is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hessians.pair_loss import PairLoss
from laplacian_metric.core.modes import evaluating
from laplacian_metric.encoder import Encoder
from laplacian_metric.integrations.optional import base_class
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.posthoc import LAM, NotFittedError

INSTALL = "laplacian-metric[lightning]"

_Callback: Any = base_class("lightning.pytorch", "Callback", INSTALL)

Unpack = Callable[[Any], tuple[Any, Any]]


def images_and_labels(batch: Any) -> tuple[Any, Any]:
    """The first two entries of a batch.

    Example:
        >>> images_and_labels(["images", "labels", "names"])
        ('images', 'labels')
    """
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise TypeError(
            f"a batch is a {type(batch).__name__}, (images, labels) is needed: say where they are with unpack="
        )
    return batch[0], batch[1]


class OnlineLAMCallback(_Callback):
    """An `OnlineLAM` beside the training of a LightningModule.

    Where ``training_step`` returns ``callback.loss(images, labels)`` the network is trained at draws from the
    posterior, as `OnlineLAM` does. Where it has a loss of its own the network is trained by that, and every batch's
    curvature is taken in after its step, in evaluation mode, at the price of one more forward pass.
    Running averages, counters and draws go into Lightning's checkpoints and come back from them.

    Args:
        loss: whose curvature is taken, e.g. `hessians.ContrastiveLoss`.
        encoder: the name of the module's attribute that is the `Encoder`, or a function of the module that returns it.
        num_images: how many the training set has; by default what the dataset of the training loader says.
        unpack: takes images and labels out of a batch; its first two entries by default.
        options: of `OnlineLAM`: ``memory``, ``warmup``, ``temperature``, ``generator`` and so on.
    """

    def __init__(
        self,
        loss: PairLoss,
        *,
        encoder: str | Callable[[Any], Encoder] = "encoder",
        num_images: int | None = None,
        unpack: Unpack = images_and_labels,
        **options: Any,
    ) -> None:
        super().__init__()
        self.pair_loss = loss
        self.encoder = encoder
        self.num_images = num_images
        self.unpack = unpack
        self.options = options
        self.online: OnlineLAM | None = None
        self._steps_before = 0
        self._state: Mapping[str, Any] | None = None

    # --- what a LightningModule and its user call ---

    def loss(self, images: Any, labels: Any) -> Tensor:
        """The loss of a batch at the draw, for ``training_step`` to return; its curvature is taken in."""
        return self._made().loss(images, labels)

    def posterior(self) -> LAM:
        """The posterior so far; the encoder in it is the module's own."""
        return self._made().posterior()

    def _made(self) -> OnlineLAM:
        if self.online is None:
            raise NotFittedError(
                "the callback has seen no training yet: pass it to Trainer(callbacks=[...]) and call trainer.fit"
            )
        return self.online

    # --- what the Trainer calls ---

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Optimizers exist and checkpoints are loaded by now."""
        encoder = self._encoder(pl_module)
        self.online = OnlineLAM(
            encoder,
            _optimizer_of(trainer.optimizers, encoder),
            self.pair_loss,
            self._count(trainer),
            **self.options,
        )
        if self._state is not None:
            self.online.check_settings(self._state["settings"])
            self.online.load_running_state(self._state["running"])
            self.online.generator.set_state(self._state["generator"].cpu())
            self._state = None

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        self._steps_before = self._made().steps

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take in the curvature of a batch whose loss was another one."""
        online = self._made()
        if online.steps > self._steps_before:
            return
        with torch.enable_grad(), evaluating(online.encoder, gradients=True):
            online.loss(*self.unpack(batch))  # what it returns is not trained on

    def state_dict(self) -> dict[str, Any]:
        if self.online is None:
            return {} if self._state is None else dict(self._state)
        return {
            "settings": self.online.settings(),
            "running": self.online.running_state(),
            "generator": self.online.generator.get_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Kept until training starts: the OnlineLAM needs the optimizer."""
        self._state = dict(state_dict) or None

    # --- what it is made of ---

    def _encoder(self, pl_module: nn.Module) -> Encoder:
        candidate: Any = (
            self.encoder(pl_module) if callable(self.encoder) else getattr(pl_module, self.encoder, None)
        )
        if not isinstance(candidate, Encoder):
            where = "what encoder= returned" if callable(self.encoder) else f"the module's {self.encoder!r}"
            raise TypeError(
                f"{where} is a {type(candidate).__name__}; pass an Encoder: Encoder.from_module(network) makes one, "
                'which the module has to keep; encoder="name" says where'
            )
        return candidate

    def _count(self, trainer: Any) -> int | None:
        if self.num_images is not None or self.options.get("n_effective") is not None:
            return self.num_images
        try:
            return len(trainer.train_dataloader.dataset)
        except (AttributeError, TypeError) as error:
            raise ValueError(
                "the training loader does not say how many images there are: pass num_images="
            ) from error


def _optimizer_of(optimizers: list[torch.optim.Optimizer], encoder: Encoder) -> torch.optim.Optimizer:
    """The one that trains the head."""
    head = encoder.head.weight
    for optimizer in optimizers:
        if any(parameter is head for group in optimizer.param_groups for parameter in group["params"]):
            return optimizer
    raise ValueError(
        "no optimizer of the module trains the encoder's head: return one over its parameters from configure_optimizers"
    )
