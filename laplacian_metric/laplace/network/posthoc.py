"""NetworkLAM: the Laplace approximation of several layers of a trained encoder, and the embeddings that it gives."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessians.approximations import Approximation
from hessians.checks import without_autocast
from hessians.network import Method
from hessians.pair_loss import PairLoss
from laplacian_metric.core.batch import Loader, map_batches
from laplacian_metric.core.checked import checked
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.labels import as_labels
from laplacian_metric.core.modes import evaluating
from laplacian_metric.core.tensor_file import digest
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.diagnostics import Diagnostics, warn_unless_mode
from laplacian_metric.laplace.encoder_posterior import EncoderPosterior, check_model, warn_of_no_curvature
from laplacian_metric.laplace.network.accumulate import Task, accumulate
from laplacian_metric.laplace.network.layers import Layers, RawNetwork, check_layers
from laplacian_metric.laplace.network.posterior import (
    NetworkFitted,
    NetworkPosterior,
    Prior,
    optimal_priors,
    prior_of_layers,
)
from laplacian_metric.laplace.network.predictive import linearised_embedding, sampled_embedding
from laplacian_metric.laplace.options import NetworkOptions, Predictive
from laplacian_metric.metrics import recall_at_k


class NetworkLAM(EncoderPosterior[NetworkFitted, NetworkOptions]):
    r"""As `LAM`, with a diagonal Gaussian over the last layers of an encoder, or over all of its parameters.

    Pairs are taken inside of the loader's batches; each batch stands for its share of all of them. With one layer it
    is `LAM` with structure "diag" and the same batches.

    Args:
        encoder: trained; nothing of it is changed, and it must not change after the fit.
        loss: what it was trained with, e.g. `hessians.ContrastiveLoss`.
        approximation: what is kept of the loss's Hessian: "fixed", "positive", "full" or "clipped".
        layers: so many last layers, in the order in which they run; "all"; or names of modules and parameters of the
            encoder ("head", "backbone.4"). What is named counts, whether it is frozen or not.
        predictive: "linearised" or "sampled", see `Predictive`.
        n_effective: the number of images unless it is given.
        temperature: divides n_effective.
        prior_precision: of the weights, one number or one for each layer. By default
            n_effective * weight_decay / temperature where the weight decay is given, and 1 otherwise.
        weight_decay: of the training.
        samples: how many networks "sampled" draws for the concentrations.
        memory_budget: bytes that gradients of single images, and draws that are kept, may take at a time.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        >>> images, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = NetworkLAM(Encoder(backbone, torch.nn.Linear(8, 3)), ContrastiveLoss(margin=0.7), layers="all")
        >>> e = lam.fit([(images, labels)], check_mode=False).embed(images)
        >>> e.kappa.shape, e.gaussians.covariance.shape, list(lam.layers)
        (torch.Size([40]), torch.Size([40, 3, 3]), ['backbone.0', 'head'])
    """

    def __init__(
        self,
        encoder: Encoder,
        loss: PairLoss,
        approximation: str | Approximation = Approximation.FIXED,
        *,
        layers: Layers = 2,
        predictive: str | Predictive = Predictive.LINEARISED,
        n_effective: float | None = None,
        temperature: float = 1.0,
        prior_precision: Prior | None = None,
        weight_decay: float | None = None,
        samples: int = 100,
        memory_budget: int = 256 << 20,
    ) -> None:
        check_model(encoder, loss)
        self.network = RawNetwork(encoder)
        options = checked(
            NetworkOptions,
            approximation=approximation,
            layers=check_layers(layers, self.network),
            predictive=predictive,
            n_effective=n_effective,
            temperature=temperature,
            prior_precision=prior_precision,
            weight_decay=weight_decay,
            samples=samples,
            memory_budget=memory_budget,
        )
        super().__init__(encoder, loss, options)
        self._posterior: tuple[tuple[Any, ...], NetworkPosterior] | None = None
        self._fingerprint: tuple[NetworkPosterior, Predictive, str] | None = None

    # --- fitting ---

    @without_autocast
    def fit(
        self,
        loader: Loader,
        *,
        cache: str | Path | None = None,
        method: str | Method = Method.EXACT,
        probes: int = 100,
        generator: torch.Generator | None = None,
        check_mode: bool = True,
        progress: bool | None = None,
    ) -> NetworkLAM:
        """Two passes over a loader of (inputs, labels): the labels first, by which is divided, then the curvature.

        Args:
            loader: of the training images, class-balanced best. The batches of a plain DataLoader are drawn once;
                any other loader has to give the same ones in both passes.
            cache: a folder to keep the sums in after each batch: a fit that was interrupted goes on from there,
                unless encoder, loss or images are others.
            method: "exact", or "sketch" for embeddings of very many dimensions; see `hessians.ggn_diagonal`.
            probes: of a sketch.
            generator: of a sketch.
            check_mode: warn where theta* is no mode of its loss.
            progress: whether to show bars; None asks the terminal.
        """
        task = Task(
            self.encoder, self.network, self.loss, self.options, Method(method), probes, generator, progress
        )
        with evaluating(self.encoder):
            fitted = accumulate(task, loader, cache)
        if isinstance(self.options.prior_precision, Mapping):
            prior_of_layers(self.options.prior_precision, fitted.groups)
        self.fitted = fitted
        if not fitted.trace > 0:
            warn_of_no_curvature(stacklevel=3)
        if check_mode:
            warn_unless_mode(self.diagnostics())
        return self

    # --- the posterior ---

    def change(self, **values: Any) -> None:
        """Replace settings."""
        prior = values.get("prior_precision")
        if self.fitted is not None and prior is not None:
            prior_of_layers(prior, self.fitted.groups)
        super().change(**values)

    @property
    def predictive(self) -> Predictive:
        """How embeddings are made of the posterior; may be changed at any time."""
        return self.options.predictive

    @predictive.setter
    def predictive(self, value: str | Predictive) -> None:
        self.change(predictive=value)

    @property
    def layers(self) -> dict[str, list[str]]:
        """The random parameters of each layer, in the order in which the layers run; known after the fit."""
        return self._fit().groups

    @property
    def posterior(self) -> NetworkPosterior:
        """The Gaussian over the deviations of the parameters from the trained ones."""
        prior = self.prior_precision
        made_of = (self._fit(), self.scale, dict(prior) if isinstance(prior, Mapping) else prior)
        if self._posterior is None or self._posterior[0] != made_of:
            self._posterior = made_of, self._posterior_of(prior)
        return self._posterior[1]

    def _posterior_of(self, prior: Prior) -> NetworkPosterior:
        fitted = self._fit()
        every = dict(self.network.named_parameters())
        theta = {name: every[name].detach() for names in fitted.groups.values() for name in names}
        return NetworkPosterior(fitted, theta, self.scale, prior)

    def fingerprint(self) -> str:
        """A digest of all that an embedding depends on; see `LAM.fingerprint`."""
        posterior, predictive = self.posterior, self.predictive
        if self._fingerprint is None or self._fingerprint[:2] != (posterior, predictive):
            fitted = self._fit()
            tensors = {
                f"{layer}.{name}": tensor
                for layer, curvature in fitted.curvature.items()
                for name, tensor in curvature.tensors().items()
            }
            settings = {
                "encoder": fitted.fingerprint,
                "scale": self.scale,
                "prior": posterior.prior,
                "predictive": predictive.value,
            }
            self._fingerprint = posterior, predictive, digest(tensors, settings)
        return self._fingerprint[2]

    def log_marginal_likelihood(self, prior_precision: Prior | None = None) -> float:
        """log p(D), but for the constants of the likelihood."""
        self.check_encoder()
        posterior = self.posterior if prior_precision is None else self._posterior_of(prior_precision)
        penalty = sum(posterior.prior[layer] * square for layer, square in posterior.squares().items())
        return -self.scale * self._fit().loss_value - (penalty + posterior.occam()) / 2

    def optimize_prior_precision(self, *, per_layer: bool = False) -> float | dict[str, float]:
        """Set the prior precision, or one for each layer, that maximises the marginal likelihood, and return it."""
        self.check_encoder()
        prior = optimal_priors(self._fit(), self.posterior, self.scale, per_layer)
        self.prior_precision = prior
        return prior

    def diagnostics(self) -> Diagnostics:
        """What to look at before this posterior is used; ``prior_to_data`` is of the mean prior precision."""
        self.check_encoder()
        fitted, posterior = self._fit(), self.posterior
        effective = posterior.effective_parameters()
        data = self.scale * fitted.trace
        prior = sum(posterior.prior[name] * one.num_parameters for name, one in posterior.layers.items())
        square = sum(float(one.double().square().sum()) for one in fitted.gradient.values())
        return Diagnostics(
            loss_value=fitted.loss_value,
            gradient_norm=math.sqrt(square),
            steps_to_mode=posterior.steps_to_mode(fitted.gradient, self.scale),
            expected_steps=math.sqrt(max(0.0, effective)),
            clamped=fitted.clamped,
            prior_to_data=prior / data if data > 0 else math.inf,
            effective_parameters=effective,
            parameters=posterior.num_parameters,
        )

    # --- embedding ---

    @without_autocast
    def embed(
        self,
        inputs: Any,
        *,
        samples: int = 0,
        generator: torch.Generator | None = None,
        progress: bool | None = None,
    ) -> StochasticEmbedding:
        """Embed images (a tensor, or a tuple or dictionary of the encoder's inputs), or a loader's.

        A loader yields inputs, or tuples whose first entry they are. With ``samples`` the embedding has joint samples
        (samples, N, Z): sample s embeds all images of all batches with one draw of the weights, by the linearised
        network where the predictive is linearised. "sampled" draws at least as many networks as are set for it
        and finds the concentrations from all of them.
        """
        if samples < 0:
            raise ValueError(f"samples is {samples}, 0 or more are needed")
        self.check_encoder()
        options = (self.network, self.posterior, samples, generator, self.options.memory_budget)
        if self.predictive is Predictive.LINEARISED:
            embed = linearised_embedding(*options)
        else:
            embed = sampled_embedding(*options, draws=self.options.samples)
        parts = map_batches(lambda batch: embed(batch.inputs), inputs, self.encoder, progress=progress)
        e = StochasticEmbedding.cat(parts)
        return e.with_source(self.fingerprint())

    @without_autocast
    def recall_lost(
        self, inputs: Any, labels: Tensor, *, samples: int = 10, generator: torch.Generator | None = None
    ) -> float:
        """recall@1 of the trained network less the mean recall@1 of sampled ones: large where the posterior collapses.

        A posterior that is too wide embeds at random: its sampled networks find nothing any more. Those of "linearised"
        are linearised.
        """
        if samples < 1:
            raise ValueError(f"{samples} samples were asked for, at least 1 is needed")
        e = self.embed(inputs, samples=samples, generator=generator)
        assert e.samples is not None
        labels = as_labels("labels", labels).to(e.point.device)
        return recall_at_k(e.point, labels) - sum(recall_at_k(z, labels) for z in e.samples) / samples

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior into a folder, in place of a posterior that is there; the encoder stays where it is."""
        from laplacian_metric.laplace.network.storage import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> NetworkLAM:
        """Return the posterior in a folder, for the encoder and the loss that it was fitted with."""
        from laplacian_metric.laplace.network.storage import load

        check_model(encoder, loss)
        return load(path, encoder, loss)
