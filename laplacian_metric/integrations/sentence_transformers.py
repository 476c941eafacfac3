"""sentence-transformers: ``encode`` with an uncertainty for every text, and trust in the answers of a corpus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from hessians.pair_loss import PairLoss
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.files import output_folder
from laplacian_metric.core.labels import Labels, as_labels
from laplacian_metric.core.modes import evaluating
from laplacian_metric.encoder import Encoder, SentenceBackbone, train_head, whitening_head
from laplacian_metric.integrations.optional import require
from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from laplacian_metric.trust.answer import Answer
from laplacian_metric.trust.trust import Trust

INSTALL = "laplacian-metric[text]"
# Options of encode that would change the features that the head was fitted to, or their form.
REFUSED = ("precision", "output_value", "truncate_dim")
# Attributes of the model below that hold for the whole too; any other would be about the model's own space.
PASSED_ON = (
    *(
        "device",
        "dtype",
        "max_seq_length",
        "get_max_seq_length",
        "tokenizer",
        "tokenize",
        "preprocess",
        "prompts",
    ),
    *(
        "default_prompt_name",
        "similarity",
        "similarity_pairwise",
        "similarity_fn_name",
        "modules",
        "parameters",
    ),
)
MODEL, HEAD, POSTERIOR, TRUST = "model", "head.safetensors", "posterior", "trust"


def fit_trust(
    model: Any,
    corpus: tuple[Sequence[str], Any],
    queries: tuple[Sequence[str], Any],
    *,
    relevant: Any = None,
    encoder: Any = None,
    batch_size: int = 32,
    **options: Any,
) -> Trust:
    """Return the calibrated trust in the nearest text of a corpus; it takes ``model.encode_query(texts)``.

    Args:
        model: a SentenceTransformer, or something that is used like it.
        corpus: N texts, and their labels (N,) or None.
        queries: validation queries, which are not in the corpus, and their labels or None.
        relevant: for each query the number of the text that answers it, or a list or a set of them, in place of labels;
            texts and queries are then encoded as documents and queries, with the prompts that the model has for them.
        encoder: what makes embeddings of the model's features; without it they are the embeddings.
        batch_size: of the model's pass over the texts.
        options: of `Trust.fit`, such as ``target="each@10"``.
    """
    names = ("encode", "encode") if relevant is None else ("encode_document", "encode_query")
    rows = [
        (_features(model, list(texts), {"batch_size": batch_size}, name), labels)
        for name, (texts, labels) in zip(names, (corpus, queries), strict=True)
    ]
    return Trust.fit(rows[0], rows[1], relevant=relevant, encoder=encoder, **options)


class UncertainSentenceTransformer:
    """A sentence encoder with a posterior, used like a SentenceTransformer: whatever it offers is about head and all.

    Args:
        lam: fitted to an `Encoder` whose backbone is a `SentenceBackbone`.
        calibration: over a gallery of sentences, calibrated with the same encoder; `trust` answers with it, and
            ``return_uncertainty`` then returns 1 less its probability.

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

    def __init__(self, lam: LAM, calibration: Trust | None = None) -> None:
        backbone = lam.encoder.backbone
        if not isinstance(backbone, SentenceBackbone) or backbone.differentiable:
            raise TypeError("lam needs an encoder of SentenceBackbone(model), which is not differentiable")
        self.lam, self.backbone, self.calibration = lam, backbone, calibration

    @classmethod
    def fit(
        cls,
        model: Any,
        sentences: Sequence[str],
        labels: Labels,
        *,
        dim: int | None = None,
        loss: PairLoss | None = None,
        steps: int = 500,
        batch_size: int = 32,
        seed: int = 0,
        validation: tuple[Sequence[str], Labels] | None = None,
        **options: Any,
    ) -> UncertainSentenceTransformer:
        """Put a head on a frozen model, train it on labelled texts, fit its posterior and choose the prior precision.

        Args:
            model: a SentenceTransformer, its name or folder, or something that is used like it.
            sentences: N texts.
            labels: (N,), whole numbers or text: texts that mean the same have the same one.
            dim: Z; by default 64, or as many as there are features or texts if these are fewer.
            loss: a `ContrastiveLoss` over the active negatives by default.
            steps: of the head's training, which starts with the whitened features; 0 leaves it at that.
            batch_size: of the model's pass over the texts.
            seed: of the training's batches.
            validation: at least 50 other texts and their labels, which calibrate a `Trust` over ``sentences`` as the
                gallery: `trust` answers with it, and the uncertainty becomes 1 less its probability that the nearest
                sentence has the same label. Without them the uncertainty is that of the posterior, which on real texts
                ranked wrong matches worse than chance (figures/sentences.md).
            options: of `LAM`, such as ``structure``; with ``prior_precision`` none is chosen.
        """
        if isinstance(model, str):
            model = require("sentence_transformers", "model", INSTALL).SentenceTransformer(model)
        features = _features(model, list(sentences), {"batch_size": batch_size})
        numbers = as_labels("labels", labels)
        width = features.shape[1]
        dim = min(64, width, max(2, len(features) - 1)) if dim is None else dim
        head = whitening_head(features, dim, eps=1e-3)
        loss = ContrastiveLoss(negatives="active") if loss is None else loss
        if steps:
            if not isinstance(loss, ContrastiveLoss):
                raise TypeError(f"loss is a {type(loss).__name__}: a ContrastiveLoss, or steps=0, is needed")
            generator = torch.Generator().manual_seed(seed)
            head = train_head(features, numbers, loss, dim, init=head, steps=steps, generator=generator)
        lam = LAM(Encoder(SentenceBackbone(model), head), loss, **options)
        lam.fit_features(features, numbers.to(features.device), check_mode=False)
        if "prior_precision" not in options:
            lam.optimize_prior_precision()
        if validation is None:
            return cls(lam)
        corpus = sentences, labels
        return cls(lam, fit_trust(model, corpus, validation, encoder=lam, batch_size=batch_size))

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
        """Return embeddings of texts: one row each, or one vector for a single text.

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
        return self._encode(
            "encode",
            sentences,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            normalize_embeddings=normalize_embeddings,
            return_uncertainty=return_uncertainty,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            **options,
        )

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return embeddings of queries as `encode` does, with the prompt that the model has for them."""
        return self._encode("encode_query", sentences, **options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return embeddings of documents as `encode` does, with the prompt that the model has for them."""
        return self._encode("encode_document", sentences, **options)

    def _encode(
        self,
        name: str,
        sentences: str | Sequence[str],
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = True,
        return_uncertainty: bool = False,
        **options: Any,
    ) -> Any:
        """Return embeddings by one of the model's ways to encode."""
        h = self._hidden(sentences, options, name)
        e = self.lam.embed_features(h)
        with torch.no_grad():
            z = e.point if normalize_embeddings else self.lam.encoder.head(h)
        form = isinstance(sentences, str), convert_to_numpy, convert_to_tensor
        if not return_uncertainty:
            return _converted(z, *form)
        uncertainty = e.uncertainty
        if self.calibration is not None and len(h):
            uncertainty = 1 - torch.from_numpy(self.calibration(h).probability).to(z)
        return _converted(z, *form), _converted(uncertainty, *form)

    def trust(self, sentences: str | Sequence[str], *, batch_size: int = 32, **options: Any) -> Answer:
        """Return, for each of Q sentences, the label of the nearest one of the gallery and how far to trust it.

        Args:
            sentences: a text, which is one query, or Q of them.
            batch_size: of the model's pass over them.
            options: others that the model's ``encode`` takes, such as ``prompt``.

        Returns:
            (Q,) each: ``labels``, ``probability``, ``verdict``, and what else an `Answer` has.

        Example:
            >>> class Letters:
            ...     def encode(self, sentences, convert_to_tensor=False, **_):
            ...         return torch.tensor([[float(s.count(c)) for c in "abcdefgh"] for s in sentences])
            >>> labels, generator = [0, 1] * 100, torch.Generator().manual_seed(0)
            >>> rows = torch.randint(8, (200, 16), generator=generator).tolist()
            >>> texts = ["".join(("abcdefga", "abcdefhh")[k][i] for i in row) for row, k in zip(rows, labels)]
            >>> sets = (texts[:100], labels[:100]), (texts[100:], labels[100:])
            >>> model = UncertainSentenceTransformer.fit(Letters(), *sets[0], dim=2, steps=20, validation=sets[1])
            >>> model.trust(["aabgcaagdfe", "hhehdhbchfa"]).labels.tolist()
            [0, 1]
        """
        if self.calibration is None:
            raise NotFittedError("trust needs a calibration: pass fit validation=(sentences, labels)")
        return self.calibration(self._hidden(sentences, {"batch_size": batch_size, **options}))

    def embed(self, sentences: Sequence[str], *, batch_size: int = 32, **options: Any) -> StochasticEmbedding:
        """Return the distribution of each text's embedding, with mean, kappa and variance."""
        return self.lam.embed_features(self._hidden(sentences, {"batch_size": batch_size, **options}))

    def _hidden(
        self, sentences: str | Sequence[str], options: dict[str, Any], name: str = "encode"
    ) -> Tensor:
        """Return the features (N, H) that the head takes."""
        refused = [option for option in REFUSED if option in options]
        if refused:
            raise TypeError(
                f"{refused[0]} gives other features than the posterior was fitted to: leave it out"
            )
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        head = self.lam.encoder.head
        if not texts:
            return head.weight.new_empty(0, head.in_features)
        options = {option: value for option, value in options.items() if value is not None}
        with evaluating(self.lam.encoder):
            h = _features(self.backbone.model, texts, {**self.backbone.options, **options}, name)
        return h.to(head.weight.device, head.weight.dtype)

    def __getattr__(self, name: str) -> Any:
        """Return what a SentenceTransformer has besides and what holds for the whole: ``tokenize``, ``device``, ..."""
        if name not in PASSED_ON or "backbone" not in self.__dict__:
            raise AttributeError(f"UncertainSentenceTransformer has no {name}, .backbone.model.{name} may")
        return getattr(self.backbone.model, name)

    def to(self, device: torch.device | str) -> UncertainSentenceTransformer:
        """Move the model, the head and the posterior."""
        self.lam.encoder.to(device)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, the head, the posterior and the calibration into a new folder, which `load` reads."""
        from safetensors.torch import save_file

        if not callable(getattr(self.backbone.model, "save", None)):
            raise TypeError("model has no method save: keep it, and the posterior by .lam.save(path)")
        with output_folder(Path(path)) as folder:
            self.backbone.model.save(str(folder / MODEL))
            head = {name: tensor.contiguous() for name, tensor in self.lam.encoder.head.state_dict().items()}
            save_file(head, folder / HEAD)
            self.lam.save(folder / POSTERIOR)
            if self.calibration is not None:
                self.calibration.save(folder / TRUST)

    save_pretrained = save

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: Any = None, loss: PairLoss | None = None
    ) -> UncertainSentenceTransformer:
        """Read what `save` wrote.

        Args:
            path: the folder.
            model: in place of the SentenceTransformer in the folder.
            loss: needed where it is of a class that is not this library's.
        """
        from safetensors.torch import load_file

        folder = Path(path)
        if not (folder / POSTERIOR).exists():
            raise FileNotFoundError(f"{folder} holds no model that UncertainSentenceTransformer.save wrote")
        if model is None:
            library = require("sentence_transformers", "a saved model", INSTALL)
            model = library.SentenceTransformer(str(folder / MODEL))
        head = load_file(folder / HEAD)
        dim, width = head["weight"].shape
        linear = nn.Linear(width, dim, bias="bias" in head, dtype=head["weight"].dtype)
        linear.load_state_dict(head)
        lam = LAM.load(folder / POSTERIOR, Encoder(SentenceBackbone(model), linear).eval(), loss)
        return cls(lam, Trust.load(folder / TRUST) if (folder / TRUST).exists() else None)

    def get_sentence_embedding_dimension(self) -> int:
        """Z, of what `encode` returns."""
        return self.lam.encoder.dim

    get_embedding_dimension = get_sentence_embedding_dimension


def _features(model: Any, texts: list[str], options: dict[str, Any], name: str = "encode") -> Tensor:
    """Features (N, H), with the checks of `SentenceBackbone`; models that know no queries encode them as any text."""
    encode = getattr(model, name, None)
    encoder = model if name == "encode" or not callable(encode) else SimpleNamespace(encode=encode)
    features: Tensor = SentenceBackbone(encoder, **options)(texts)
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
