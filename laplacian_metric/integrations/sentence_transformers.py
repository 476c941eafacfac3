"""sentence-transformers: ``encode`` as its users know it, with an uncertainty for every text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hessians import ContrastiveLoss
from hessians.pair_loss import PairLoss
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.modes import evaluating
from laplacian_metric.encoder import Encoder, SentenceBackbone, train_head, whitening_head
from laplacian_metric.integrations.optional import require
from laplacian_metric.laplace.posthoc import LAM

INSTALL = "laplacian-metric[text]"
# What changes the features that the head was fitted to, or their form.
FIXED = ("precision", "output_value", "truncate_dim")


class UncertainSentenceTransformer:
    """A sentence encoder with a posterior, used like a SentenceTransformer.

    Args:
        lam: fitted to an `Encoder` whose backbone is a `SentenceBackbone`.

    Example:
        >>> class Letters:
        ...     def encode(self, sentences, convert_to_tensor=False, **_):
        ...         return torch.tensor([[float(s.count(c)) for c in "abcd"] for s in sentences])
        >>> texts, labels = ["aab", "abb", "ab", "ccd", "cdd", "cd"] * 3, [0, 0, 0, 1, 1, 1] * 3
        >>> model = UncertainSentenceTransformer.fit(Letters(), texts, labels, dim=2, steps=20, seed=0)
        >>> z, uncertainty = model.encode(["aabb", "dcbd", "xyz"], return_uncertainty=True)
        >>> z.shape, uncertainty.shape
        ((3, 2), (3,))
    """

    def __init__(self, lam: LAM) -> None:
        backbone = lam.encoder.backbone
        if not isinstance(backbone, SentenceBackbone):
            raise TypeError(
                f"the encoder's backbone is a {type(backbone).__name__}, a SentenceBackbone is needed: "
                "Encoder(SentenceBackbone(model), head)"
            )
        if backbone.differentiable:
            raise ValueError(
                "the encoder's backbone was made with differentiable=True, which encode is not: fit an encoder of "
                "SentenceBackbone(model)"
            )
        self.lam = lam
        self.backbone = backbone

    @classmethod
    def fit(
        cls,
        model: Any,
        sentences: Sequence[str],
        labels: Tensor | Sequence[int],
        *,
        dim: int | None = None,
        loss: PairLoss | None = None,
        steps: int = 500,
        batch_size: int = 32,
        seed: int = 0,
        **options: Any,
    ) -> UncertainSentenceTransformer:
        """Put a head on a frozen model, train it on labelled texts, and fit its posterior.

        Args:
            model: a SentenceTransformer, its name or folder, or something that is used like it.
            sentences: N texts.
            labels: (N,), whole numbers: texts that mean the same have the same one.
            dim: Z; by default 64, or as many as there are features or texts if these are fewer.
            loss: a `ContrastiveLoss` over the active negatives by default.
            steps: of the head's training, which starts with the whitened features; 0 leaves it at that.
            batch_size: of the model's pass over the texts.
            seed: of the training's batches.
            options: of `LAM`, such as ``structure``.
        """
        if isinstance(model, str):
            module = require("sentence_transformers", "a model by its name", INSTALL)
            model = module.SentenceTransformer(model)
        backbone = SentenceBackbone(model)
        features = _features(model, list(sentences), {"batch_size": batch_size})
        numbers = torch.as_tensor(labels)
        if len(numbers) != len(features):
            raise ValueError(f"labels has {len(numbers)} entries for {len(features)} sentences")
        width = features.shape[1]
        dim = min(64, width, max(2, len(features) - 1)) if dim is None else dim
        head = whitening_head(features, dim, eps=1e-3)
        loss = ContrastiveLoss(negatives="active") if loss is None else loss
        if steps:
            if not isinstance(loss, ContrastiveLoss):
                raise TypeError(
                    f"loss is a {type(loss).__name__}, but the head is trained with a ContrastiveLoss: pass one, "
                    "steps=0, or fit a LAM yourself"
                )
            generator = torch.Generator().manual_seed(seed)
            head = train_head(features, numbers, loss, dim, init=head, steps=steps, generator=generator)
        lam = LAM(Encoder(backbone, head), loss, **options)
        lam.fit_features(features, numbers.to(features.device), check_mode=False)
        return cls(lam)

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = True,
        return_uncertainty: bool = False,
        **options: Any,
    ) -> Any:
        """Embed texts: one row each, or one vector for a single text.

        Args:
            sentences: a text, or N of them.
            prompt_name, prompt, batch_size, show_progress_bar: go to the model's ``encode``.
            convert_to_numpy: numpy arrays; otherwise a list of tensors.
            convert_to_tensor: one tensor, whatever ``convert_to_numpy`` says.
            normalize_embeddings: unit embeddings, which is what the posterior is about; False gives those before the
                norm.
            return_uncertainty: (embeddings, uncertainties), the latter (N,) or, for a single text, one number.
            options: others that the model's ``encode`` takes.
        """
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        known = {
            "prompt_name": prompt_name,
            "prompt": prompt,
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
        }
        h = self._hidden(texts, {**known, **options})
        e = self.lam.embed_features(h)
        with torch.no_grad():
            z = e.point if normalize_embeddings else self.lam.encoder.head(h)
        converted = _converted(z, single, convert_to_numpy, convert_to_tensor)
        if not return_uncertainty:
            return converted
        return converted, _converted(e.uncertainty, single, convert_to_numpy, convert_to_tensor)

    def embed(self, sentences: Sequence[str], *, batch_size: int = 32, **options: Any) -> StochasticEmbedding:
        """The distribution of each text's embedding, with mean, kappa and variance."""
        return self.lam.embed_features(self._hidden(list(sentences), {"batch_size": batch_size, **options}))

    def _hidden(self, texts: list[str], options: dict[str, Any]) -> Tensor:
        """The features (N, H) that the head takes."""
        fixed = [name for name in FIXED if name in options]
        if fixed:
            raise TypeError(
                f"{', '.join(fixed)} would give other features than the posterior was fitted to: leave it out"
            )
        head = self.lam.encoder.head
        if not texts:
            return head.weight.new_empty(0, head.in_features)
        options = {name: value for name, value in options.items() if value is not None}
        with evaluating(self.lam.encoder):
            h = _features(self.backbone.model, texts, {**self.backbone.options, **options})
        return h.to(head.weight.device, head.weight.dtype)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a SentenceTransformer has: ``tokenize``, ``device``, ``max_seq_length``."""
        if name.startswith("__") or "backbone" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.backbone.model, name)

    def get_sentence_embedding_dimension(self) -> int:
        """Z, of what `encode` returns."""
        return self.lam.encoder.dim

    get_embedding_dimension = get_sentence_embedding_dimension


def _features(model: Any, texts: list[str], options: dict[str, Any]) -> Tensor:
    """Features (N, H), with the checks of `SentenceBackbone`."""
    features: Tensor = SentenceBackbone(model, **options)(texts)
    return features.detach()


def _converted(values: Tensor, single: bool, numpy: bool, tensor: bool) -> Any:
    """In the form that ``encode`` was asked for; ``values`` has one row for each text."""
    if single:
        values = values[0]
    if tensor:
        return values
    if numpy:
        return values.cpu().numpy() if values.ndim else float(values)
    return values if single else list(values)
