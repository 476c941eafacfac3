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
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from hessians import Pairs
from hessians.approximations import Approximation
from hessians.checks import compute_dtype
from hessians.pair_loss import PairLoss
from hessians.pairs import Population
from laplacian_metric.core.checked import checked
from laplacian_metric.core.modes import check_unused
from laplacian_metric.core.parallel import reducer, together
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.encoder_posterior import check_model
from laplacian_metric.laplace.fit import bias_is_known
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.laplace.layer.base import DiagonalPosterior
from laplacian_metric.laplace.online import batch as batches
from laplacian_metric.laplace.online import parallel as parallel
from laplacian_metric.laplace.online.batch import Labels, Miner
from laplacian_metric.laplace.online.running import Running
from laplacian_metric.laplace.online.state import check_same, described, forms, weight_decay_of
from laplacian_metric.laplace.options import OnlineOptions, PosteriorOptions
from laplacian_metric.laplace.posthoc import LAM, NotFittedError

PAPER_SHARE = 1e-4
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
        if Structure.parse(structure) is not Structure.DIAGONAL:
            raise ValueError(
                f'structure is "{structure}": online, only "diag" can be maintained, since factors and eigenvectors of '
                "a sum are not the sums of those of its batches. Fit a LAM with that structure afterwards"
            )
        if num_images is None and n_effective is None:
            raise ValueError(
                "num_images is missing: say how many images the training set has, e.g. num_images=len(dataset); the "
                "loss is an average and does not know"
            )
        options = checked(
            OnlineOptions,
            approximation=approximation,
            n_effective=n_effective,
            temperature=temperature,
            prior_precision=prior_precision,
            memory=memory,
            warmup=warmup,
            samples=samples,
        )
        summed = options.memory == "paper"
        share = PAPER_SHARE if isinstance(options.memory, str) else options.memory or DEFAULT_SHARE
        self.encoder = encoder
        self.optimizer = optimizer
        self.pair_loss = loss
        self.num_images = round(n_effective or 0) if num_images is None else int(num_images)
        if self.num_images < 1 or num_images not in (None, self.num_images):
            raise ValueError(f"num_images is {num_images}, a whole number from 1 on is needed")
        self.share = share
        self.samples = options.samples
        self.warmup = min(WARMUP, math.ceil(1 / share)) if options.warmup is None else options.warmup
        self.miner = miner
        # Unfitted: it holds scale and prior.
        shared = {field.name: getattr(options, field.name) for field in fields(PosteriorOptions)}
        shared["n_effective"] = float(self.num_images) if n_effective is None else n_effective
        self._lam = LAM(encoder, loss, weight_decay=weight_decay_of(encoder, optimizer), **shared)
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
        if generator is not None and generator.device.type != weight.device.type:
            raise ValueError(
                f"generator is on {generator.device}, the head's weights are on {weight.device}: make it there"
            )
        self.generator = torch.Generator(weight.device).manual_seed(0) if generator is None else generator
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
        return float(self._lam.prior_precision)

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
        options = replace(
            self._lam.options, n_effective=self.n_effective, prior_precision=self.prior_precision
        )
        lam = LAM.of(self.encoder, self.pair_loss, options)
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
            "summed": self._running.summed,
            **described("loss", self.pair_loss),
        }

    def check_settings(self, stored: Mapping[str, Any]) -> None:
        """Refuse the settings of another run."""
        check_same("settings", self.settings(), stored)

    def running_state(self) -> dict[str, Tensor]:
        """The running curvature and all counters, as tensors: what a loop keeps that saves the rest by itself."""
        return self._running.tensors()

    def load_running_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `running_state`; one of another architecture is refused, and nothing is changed."""
        self._running.load(state)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values from which `load_state_dict` goes on to the bit; ``torch.save`` takes it.

        It holds encoder, optimizer, running curvature and generator. What is the loop's own (schedulers, the order of
        the data, torch's global generator where there is dropout) is for the loop to keep.
        """
        return {
            "settings": self.settings(),
            "encoder": self.encoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "running": self._running.tensors(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; one of another architecture or of other settings is refused, and nothing is changed."""
        if "settings" not in state:
            raise ValueError("this is no state of an OnlineLAM: pass what state_dict() returned")
        check_same("architecture", forms(self.encoder.state_dict()), forms(state["encoder"]))
        self.check_settings(state["settings"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.encoder.load_state_dict(state["encoder"])
        self._running.load(state["running"])
        self.generator.set_state(state["generator"].cpu())
