"""OnlineLAM: the posterior over the last layer's weights, kept up while the network is trained (Monte Carlo EM).

Every step draws the head's weights from the posterior so far, moves the weights by the gradient at the draw, and takes
the curvature of its batch at the draw into a running average:

    theta ~ N(theta_t, 1/precision_t),   precision_t = n_effective max(0, G_t/(1-(1-a)^t))/temperature + prior,
    G_{t+1} = (1-a) G_t + a G_batch(theta),   G_0 = 0.

The average is not clamped, only what is used of it: clamping every batch would turn the noise of the batches into
precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hessians import Pairs
from hessians.approximations import Approximation
from hessians.checks import compute_dtype
from hessians.pair_loss import PairLoss
from hessians.pairs import Population
from laplacian_metric.core.modes import check_unused
from laplacian_metric.core.parallel import reducer, together
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.encoder_posterior import check_model
from laplacian_metric.laplace.fit import bias_is_known
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.laplace.layer.diagonal import DiagonalPosterior
from laplacian_metric.laplace.online import batch as batches
from laplacian_metric.laplace.online import parallel as parallel
from laplacian_metric.laplace.online.batch import Labels, Miner
from laplacian_metric.laplace.online.running import Running
from laplacian_metric.laplace.online.state import (
    SWITCHES,
    VERSION,
    at_least,
    check_architecture,
    check_settings,
    check_structure,
    check_version,
    checked_generator,
    checked_images,
    checked_memory,
    checked_optimizer,
    defaults,
    described,
)
from laplacian_metric.laplace.posthoc import LAM, NotFittedError

DEFAULT_SHARE = 5e-3
# So many batches leave an error of a tenth of a batch's own in the curvature: enough to draw from.
WARMUP = 100


class OnlineLAM:
    r"""Trains an encoder together with a Gaussian over its last layer's weights.

    Args:
        encoder: trained in place; in training mode, if it has layers to which that matters.
        optimizer: of the encoder's parameters.
        loss: e.g. `hessians.ContrastiveLoss`.
        num_images: how many the training set has; n_effective by default.
        approximation: what is kept of the loss's Hessian: "fixed", "positive", "full" or "clipped".
        structure: "diag"; nothing else can be kept up from batch to batch.
        n_effective: how many independent observations the loss's average stands for.
        temperature: divides n_effective.
        prior_precision: of the weights. By default n_effective * weight_decay / temperature where the optimizer has a
            weight decay for the head, and 1 otherwise.
        memory: a, the new batch's share in the running average, which covers about 1/a batches. "paper": a = 1e-4, and
            the sum of that memory, which starts at the prior, in place of an average.
        warmup: so many steps are taken without a draw. By default 100, or 1/a where that is less.
        samples: how many draws a step has; the mean of their losses is minimised.
        miner: takes unit embeddings (N, Z) and labels (N,), and returns pytorch-metric-learning's index tuple, or
            `hessians.Pairs`: the pairs that are trained on. The curvature is over all pairs.
        generator: of the draws, on the head's device; a new one that starts at 0 by default.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> encoder = Encoder.with_head(torch.nn.Identity(), 4, dim=3, init="random", seed=0)
        >>> optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
        >>> online = OnlineLAM(encoder, optimizer, ContrastiveLoss(margin=0.7), num_images=40)
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> losses = [online.step(features, labels) for _ in range(3)]
        >>> online.posterior().embed_features(features).kappa.shape
        torch.Size([40])
    """

    def __init__(
        self,
        encoder: Encoder,
        optimizer: torch.optim.Optimizer,
        loss: PairLoss,
        num_images: int | None = None,
        *,
        approximation: str | Approximation = Approximation.FIXED,
        structure: str | Structure = Structure.DIAGONAL,
        n_effective: float | None = None,
        temperature: float = 1.0,
        prior_precision: float | None = None,
        memory: float | str = DEFAULT_SHARE,
        warmup: int | None = None,
        samples: int = 1,
        miner: Miner | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_model(encoder, loss)
        share, summed = checked_memory(memory)
        check_structure(structure)
        self.encoder = encoder
        self.optimizer = optimizer
        self.pair_loss = loss
        self.num_images = checked_images(num_images, n_effective)
        self.share = share
        self.samples = at_least("samples", samples, 1)
        self.warmup = at_least("warmup", min(WARMUP, math.ceil(1 / share)) if warmup is None else warmup, 0)
        self.miner = miner
        # Unfitted: it holds scale and prior.
        self._lam = LAM(
            encoder,
            loss,
            approximation,
            n_effective=float(self.num_images) if n_effective is None else n_effective,
            temperature=temperature,
            prior_precision=prior_precision,
            weight_decay=checked_optimizer(encoder, optimizer),
        )
        head, weight = encoder.head, encoder.head.weight
        self._bias_is_random = head.bias is not None and bias_is_known(loss, self._lam.approximation)
        like = torch.empty(
            len(weight),
            weight.shape[1] + int(self._bias_is_random),
            dtype=compute_dtype(weight),
            device=weight.device,
        )
        # The paper's sum starts at the prior, and the prior is added all the same.
        start = self._lam.prior_precision / self._lam.scale if summed else None
        self._running = Running(like, share, summed, start)
        self.generator = checked_generator(generator, weight.device)
        self._said: set[str] = set()
        parallel.same_start(encoder, self.generator, self.settings())

    # --- training ---

    def step(self, images: Any, labels: Labels) -> float:
        """One step of the optimizer on a batch; returns the loss at the draw.

        For gradient clipping, mixed precision or accumulation write the loop out, with `loss`.

        Args:
            images: what the encoder's backbone takes.
            labels: (N,), or `hessians.Pairs` over the images.
        """
        self.optimizer.zero_grad()
        loss = self.loss(images, labels)
        loss.backward()
        self.average_gradients()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, images: Any, labels: Labels) -> Tensor:
        """The loss of a batch at the draw, a differentiable scalar; its curvature is taken into the running one.

        A loss, gradient or curvature that is not finite is refused before anything is changed.
        """
        check_unused(self.encoder)
        before = self.generator.get_state()
        try:
            return self._loss(images, labels)
        except Exception:
            # Some processes may have drawn more than others: they go on from the same state, as if nothing had been.
            self.generator.set_state(before)
            raise

    def _loss(self, images: Any, labels: Labels) -> Tensor:
        with together(reducer()):
            h, us, trained, curved = self._embedded(images, labels)
            with torch.autocast(h.device.type, enabled=False):
                loss = batches.mean_loss(self.pair_loss, us, trained)
            batches.check_finite_step(self.steps + 1, loss=loss)
        value, square, counts = parallel.agreed_numbers(loss, batches.mean_square(us), curved)
        with torch.autocast(h.device.type, enabled=False), batches.said_once(self._said, self.pair_loss):
            gradient = batches.head_gradient(loss, us, h, self._bias_is_random)
            curved = curved.with_population(self._population(curved, counts))
            curvature = batches.batch_curvature(
                self.encoder.head,
                h,
                us,
                curved,
                self.pair_loss,
                self._lam.approximation,
                self._bias_is_random,
            )
            self._take(curvature, gradient, value, square, counts)
        return loss

    def average_gradients(self) -> None:
        """Average the gradients over the processes of ``torchrun``; nothing in one process. `step` does it itself.

        Parameters inside of a DistributedDataParallel are left to it.
        """
        parallel.average_gradients(self.encoder)

    def _embedded(self, images: Any, labels: Labels) -> tuple[Tensor, list[Tensor], Pairs, Pairs]:
        """Features (N, H), embeddings (N, Z) at each draw, the pairs that are trained on and those that are curved."""
        h = self.encoder.features(images)
        pairs, class_labels = batches.all_pairs(labels, h)
        us = batches.embeddings_at_draws(
            self.encoder.head, h, self._drawn_from(), self.samples, self.generator, self._bias_is_random
        )
        for u in us:
            batches.check_finite_step(self.steps + 1, embeddings=u)
        trained, curved = self._chosen_pairs(us[0], pairs, class_labels)
        return h, us, trained, curved

    def _chosen_pairs(self, u: Tensor, pairs: Pairs, labels: Tensor | None) -> tuple[Pairs, Pairs]:
        """Return those of all pairs of raw embeddings u (N, Z) that are trained on, and those that are curved."""
        if self.miner is None:
            return pairs, pairs
        return batches.mined_pairs(u, labels, self.miner, self.encoder.normalize), pairs

    def _drawn_from(self) -> DiagonalPosterior | None:
        """The posterior so far, or None while there is none to draw from.

        In the beginning there is no curvature, or that of too few batches: entries that are clamped because of their
        noise would be drawn from the prior, far from anything that was trained.
        """
        running = self._running
        if running.steps < max(self.warmup, int(running.start is None)):
            return None
        data = running.curvature.clamp(min=0)
        scale = self._lam.scale * running.factor
        return DiagonalPosterior(data, scale, self.prior_precision, (data.shape[0], data.shape[1]))

    def _population(self, pairs: Pairs, counts: Population) -> Population:
        """Return what the batch's curvature is divided by; ``counts`` are those of all processes."""
        return self._running.population(*counts)

    def _over_processes(self, curvature: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the curvature and the gradient of the batch over all processes."""
        return parallel.summed_batch(curvature, gradient)

    def _take(
        self,
        curvature: Tensor,
        gradient: Tensor,
        value: float,
        square: float,
        counts: tuple[float, float],
    ) -> None:
        """Take a batch into the running averages, once all of it is known to be finite."""
        curvature, gradient = self._over_processes(curvature, gradient)
        batches.check_finite_step(self.steps + 1, curvature=curvature, gradient=gradient)
        self._running.add(curvature, gradient, value, square, counts)

    # --- the posterior ---

    @property
    def steps(self) -> int:
        """How many have been taken."""
        return self._running.steps

    @property
    def n_effective(self) -> float:
        """How many independent observations the loss's average stands for."""
        return self._lam.n_effective

    @property
    def temperature(self) -> float:
        """Divides n_effective."""
        return self._lam.temperature

    @property
    def prior_precision(self) -> float:
        """Of every weight."""
        return self._lam.prior_precision

    def posterior(self) -> LAM:
        """The posterior so far, without another pass over the data.

        Its curvature is the running one; loss value, gradient and the lengths of embeddings are running means of what
        was trained on.
        The encoder is the one that is being trained, not a copy: ask again after further steps,
        when this one refuses to embed.
        """
        running = self._running
        if not running.steps:
            raise NotFittedError("this OnlineLAM has taken no step yet: call step(images, labels)")
        lam = LAM(
            self.encoder,
            self.pair_loss,
            self._lam.approximation,
            n_effective=self.n_effective,
            temperature=self.temperature,
            prior_precision=self.prior_precision,
            weight_decay=self._lam.weight_decay,
        )
        running.warn_about_pairs()
        lam.fitted = running.fitted(self.num_images, self._bias_is_random, self.encoder.fingerprint())
        return lam

    # --- resuming ---

    def settings(self) -> dict[str, Any]:
        """What a run has to have in common with the state that it resumes from."""
        return {
            "num_images": self.num_images,
            "approximation": self._lam.approximation.value,
            "n_effective": self.n_effective,
            "temperature": self.temperature,
            "prior_precision": self.prior_precision,
            "memory": self.share,
            "warmup": self.warmup,
            "samples": self.samples,
            "normalize": self.encoder.normalize,
            "optimizer": type(self.optimizer).__name__,
            "generator": self.generator.device.type,
            "miner": None if self.miner is None else type(self.miner).__name__,
            **described("loss", self.pair_loss),
            **SWITCHES,
            **({"switches.memory": "sum", "switches.start": "prior"} if self._running.summed else {}),
        }

    def check_settings(self, stored: Mapping[str, Any]) -> None:
        """Refuse the settings of another run; those that an older state lacks have their defaults."""
        known = {**defaults("loss", self.pair_loss), **SWITCHES}
        check_settings(self.settings(), {**known, **stored})

    def running_state(self) -> dict[str, Tensor]:
        """The running curvature and all counters, as tensors: what a loop keeps that saves the rest by itself."""
        return self._running.tensors()

    def load_running_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `running_state`; one of another architecture is refused, and nothing is changed."""
        self._running.load_tensors(state)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values from which `load_state_dict` goes on to the bit; ``torch.save`` takes it.

        It holds encoder, optimizer, running curvature and generator. What is the loop's own (schedulers, the order of
        the data, torch's global generator where there is dropout) is for the loop to keep.
        """
        return {
            "version": VERSION,
            "settings": self.settings(),
            "encoder": self.encoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "running": self._running.state(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; one of another architecture or of other settings is refused, and nothing is changed."""
        check_version(state)
        check_architecture(self.encoder.state_dict(), state["encoder"])
        self.check_settings(state["settings"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.encoder.load_state_dict(state["encoder"])
        self._running.load(state["running"])
        self.generator.set_state(state["generator"].cpu())
