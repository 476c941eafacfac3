"""Texts with an uncertainty: a frozen sentence encoder, a head trained on labelled texts, and its posterior."""

from __future__ import annotations

from typing import Any

from laplacian_metric.integrations.sentence_transformers import UncertainSentenceTransformer

QUESTIONS = {
    "delivery": ["Where is my parcel?", "My order has not arrived.", "When will it be delivered?"],
    "refund": ["I want my money back.", "How do I get a refund?", "Please return the payment."],
    "account": ["I forgot my password.", "I cannot log in.", "How do I change my e-mail address?"],
}


def main(model: Any = "all-MiniLM-L6-v2", steps: int = 200) -> dict[str, tuple[str, float]]:
    """Args: model: a SentenceTransformer, or the name or folder of one."""
    names = list(QUESTIONS)
    texts = [text for name in names for text in QUESTIONS[name]]
    labels = [number for number, name in enumerate(names) for _ in QUESTIONS[name]]
    encoder = UncertainSentenceTransformer.fit(model, texts, labels, dim=4, steps=steps)

    asked = ["The package is late.", "Can I be reimbursed?", "What do penguins eat in winter?"]
    gallery = encoder.encode(texts)
    z, uncertainty = encoder.encode(asked, return_uncertainty=True)
    nearest = (z @ gallery.T).argmax(axis=1)
    return {
        text: (names[labels[row]], float(doubt))
        for text, row, doubt in zip(asked, nearest, uncertainty, strict=True)
    }


if __name__ == "__main__":
    print(main())  # noqa: T201
