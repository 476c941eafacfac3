"""Lightning: a callback that maintains the posterior over the last layer while a LightningModule is trained."""

from __future__ import annotations

import operator
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


class OnlineLAMCallback(_Callback):
    """An `OnlineLAM` beside the training of a LightningModule.

    Where ``training_step`` returns ``callback.loss(images, labels)`` the network is trained at draws from the
    posterior, as `OnlineLAM` does. Where it returns another loss the network is trained by that, and every batch's
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
        unpack: Callable[[Any], tuple[Any, Any]] = operator.itemgetter(0, 1),
        **options: Any,
    ) -> None:
        super().__init__()
        self.pair_loss, self.num_images, self.unpack, self.options = loss, num_images, unpack, options
        self.encoder = operator.attrgetter(encoder) if isinstance(encoder, str) else encoder
        self.online: OnlineLAM | None = None
        self._steps_before = 0
        self._state: dict[str, Any] = {}

    # --- what a LightningModule and its user call ---

    def loss(self, images: Any, labels: Any) -> Tensor:
        """Return the loss of a batch at the draw, for ``training_step`` to return; its curvature is taken in."""
        return self._trained().loss(images, labels)

    def posterior(self) -> LAM:
        """Return the posterior so far; the encoder in it is the module's own."""
        return self._trained().posterior()

    def _trained(self) -> OnlineLAM:
        if self.online is None:
            raise NotFittedError("there was no training yet: pass the callback to Trainer(callbacks=[...])")
        return self.online

    # --- what the Trainer calls ---

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Make the OnlineLAM: optimizers exist and checkpoints are loaded by now."""
        encoder = self.encoder(pl_module)
        if not isinstance(encoder, Encoder):
            raise TypeError(
                f"encoder is a {type(encoder).__name__}: an Encoder that the module keeps is needed"
            )
        optimizer = _optimizer_of(trainer.optimizers, encoder)
        self.online = OnlineLAM(encoder, optimizer, self.pair_loss, self._count(trainer), **self.options)
        if self._state:
            self.online.check_settings(self._state["settings"])
            self.online.load_running_state(self._state["running"])
            self.online.generator.set_state(self._state["generator"].cpu())
            self._state = {}

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        self._steps_before = self._trained().steps

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take in the curvature of a batch whose loss was another one."""
        online = self._trained()
        if online.steps == self._steps_before:
            with torch.enable_grad(), evaluating(online.encoder, gradients=True):
                online.loss(*self.unpack(batch))  # what it returns is not trained on

    def state_dict(self) -> dict[str, Any]:
        """Return what resumes the training to the bit; until it starts, what was loaded."""
        if self.online is None:
            return self._state
        return {
            "settings": self.online.settings(),
            "running": self.online.running_state(),
            "generator": self.online.generator.get_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep a state until training starts: the OnlineLAM needs the optimizer."""
        self._state = dict(state_dict)

    def _count(self, trainer: Any) -> int | None:
        if self.num_images is not None or "n_effective" in self.options:
            return self.num_images
        try:
            return len(trainer.train_dataloader.dataset)
        except (AttributeError, TypeError) as error:
            raise ValueError("num_images is needed: the training loader does not say it") from error


def _optimizer_of(optimizers: list[torch.optim.Optimizer], encoder: Encoder) -> torch.optim.Optimizer:
    """Return the one that trains the head."""
    for optimizer in optimizers:
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(parameter is encoder.head.weight for parameter in trained):
            return optimizer
    raise ValueError("configure_optimizers returns no optimizer over the parameters of the encoder's head")
