"""Sentence encoders as a backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class SentenceBackbone(nn.Module):
    """A list of N sentences -> features (N, H), by a model of sentence-transformers or one that is used like it.

    Args:
        model: has ``encode(sentences, convert_to_tensor=True)``. If it is no `torch.nn.Module`, its weights are not in
            the encoder's fingerprint.
        differentiable: take ``model(model.tokenize(sentences))["sentence_embedding"]`` instead, so that the model
            itself can be trained; ``encode`` computes no gradients.
        options: passed on to ``encode``, for instance ``batch_size``.

    Example:
        >>> class Lengths:
        ...     def encode(self, sentences, convert_to_tensor):
        ...         return torch.tensor([[float(len(s)), float(s.count(" "))] for s in sentences])
        >>> SentenceBackbone(Lengths())(["one", "one two"]).tolist()
        [[3.0, 0.0], [7.0, 1.0]]
    """

    def __init__(self, model: Any, *, differentiable: bool = False, **options: Any) -> None:
        super().__init__()
        needed = ("tokenize",) if differentiable else ("encode",)
        for name in needed:
            if not callable(getattr(model, name, None)):
                raise TypeError(
                    f"model ({type(model).__name__}) has no method {name}: a SentenceTransformer or something that is "
                    "used like it is needed; SentenceBackbone.from_name makes one"
                )
        if differentiable and options:
            raise ValueError(
                f"{', '.join(options)} are options of encode, which differentiable=True does not use"
            )
        self.model = model
        self.differentiable = differentiable
        self.options = options
        self.training = getattr(model, "training", True)

    @classmethod
    def from_name(cls, name: str, *, differentiable: bool = False, **options: Any) -> SentenceBackbone:
        """By the name or folder that sentence-transformers knows a model by; names are downloaded."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ImportError(
                'sentence encoders need sentence-transformers: pip install "laplacian-metric[text]"'
            ) from error
        return cls(SentenceTransformer(name), differentiable=differentiable, **options)

    def forward(self, sentences: Sequence[str]) -> Tensor:
        if isinstance(sentences, str) or not all(isinstance(sentence, str) for sentence in sentences):
            kind = type(sentences).__name__
            raise TypeError(f"sentences is a {kind}, a list of strings is needed, [sentence] for one")
        sentences = list(sentences)
        if self.differentiable:
            embeddings = self._forward(sentences)
        else:
            embeddings = self.model.encode(sentences, convert_to_tensor=True, **self.options)
            if isinstance(embeddings, Tensor):
                # What comes out of an inference mode could not be used for the gradient of the head.
                embeddings = embeddings.clone()
        if not isinstance(embeddings, Tensor):
            raise TypeError(f"the model returns a {type(embeddings).__name__}, a tensor (N, H) is needed")
        if not sentences:
            return embeddings.reshape(0, self._width(embeddings))
        return embeddings

    def _forward(self, sentences: list[str]) -> Any:
        if not sentences:
            return torch.empty(0, self._width(None))
        tokens = self.model.tokenize(sentences)
        device = (
            next((p.device for p in self.model.parameters()), None)
            if isinstance(self.model, nn.Module)
            else None
        )
        moved = {name: x.to(device) if isinstance(x, Tensor) and device else x for name, x in tokens.items()}
        output = self.model(moved)
        return output["sentence_embedding"] if isinstance(output, Mapping) else output

    def _width(self, embeddings: Tensor | None) -> int:
        if embeddings is not None and embeddings.ndim == 2:
            return embeddings.shape[1]
        for name in ("get_sentence_embedding_dimension", "get_embedding_dimension"):
            if callable(getattr(self.model, name, None)):
                return int(getattr(self.model, name)())
        raise ValueError("sentences is empty, and the model does not say how many features it has")
