"""Packaging: what is installed, what it needs, and the command that it brings."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def read_version() -> str:
    """The version is written once, in the package; read it without importing torch."""
    source = (ROOT / "laplacian_metric" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', source, flags=re.MULTILINE)
    if found is None:
        raise RuntimeError('laplacian_metric/__init__.py must have a line __version__ = "X.Y.Z"')
    return found.group(1)


BASE = ["numpy>=1.26", "pydantic>=2.7", "filelock>=3.13"]

LAM = [
    "torch>=2.6",
    "backpack-for-pytorch>=1.7",
    "laplace-torch>=0.3",
    "scipy>=1.12",
    "safetensors>=0.4",
    "pytorch-metric-learning>=2.6",
    "scikit-learn>=1.6",
    "matplotlib>=3.8",
    "pillow>=10.3",
    "pyyaml>=6.0",
    "jinja2>=3.1",
    "typer>=0.19.1",
    "rich>=13.7",
]

# What users choose; "all" brings every one of them that fits into one environment.
CHOICES = {
    "serve": ["fastapi>=0.115", "uvicorn>=0.30"],
    "faiss": ["faiss-cpu>=1.8"],
    "pgvector": ["psycopg[binary]>=3.2"],
    "qdrant": ["qdrant-client>=1.13"],
    "milvus": ["pymilvus>=2.6.2", "milvus-lite>=3.0"],
    "lancedb": ["lancedb>=0.30", "pyarrow>=16.0"],
    "chroma": ["chromadb>=1.0"],
    "export": ["onnx>=1.17", "onnxscript>=0.2"],
    "vision": ["torchvision>=0.21", "timm>=1.0"],
    "lightning": ["lightning>=2.4"],
    "hub": ["huggingface_hub>=0.24"],
    "ray": ["ray>=2.40", "pandas>=2.0", "pyarrow>=16.0"],
    "text": ["sentence-transformers>=3.0"],
    "langchain": ["langchain-core>=0.3"],
    "llama-index": ["llama-index-core>=0.12"],
    "haystack": ["haystack-ai>=2.10"],
    "mteb": ["mteb>=2.0"],
}
TOOLS = [
    "pytest>=8.0",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "curvlinops-for-pytorch>=3.0",
    "selenium>=4.20",
    "nbclient>=0.10",
    "ipykernel>=6.29",
    "mpmath>=1.3",
    "onnxruntime>=1.20",
    "httpx>=0.27",
    "pgserver>=0.1.4",
    "ruff>=0.9",
    "mypy>=1.13",
    "types-PyYAML>=6.0",
    "setuptools>=77",
]
GALLERIES = ("faiss", "pgvector", "qdrant", "milvus", "lancedb", "chroma")
TESTED = (*GALLERIES, "serve", "export", "vision", "lightning", "ray", "langchain")
HEAVY = ("langchain", "llama-index", "haystack", "mteb")


def together(*groups: list[str]) -> list[str]:
    """Return the requirements of several groups, each once."""
    return list(dict.fromkeys(requirement for group in groups for requirement in group))


EXTRAS = {
    "lam": LAM,
    **CHOICES,
    "all": together(LAM, *CHOICES.values()),
    "test": together(LAM, TOOLS, *(CHOICES[name] for name in TESTED)),
    "test-integrations": together(TOOLS, *(CHOICES[name] for name in HEAVY)),
    "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.27"],
}

setup(
    name="laplacian-metric",
    version=read_version(),
    description="Uncertainty for metric learning: can this match be trusted?",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "laplacian_metric/data/_sample/LICENCES"],
    python_requires=">=3.10",
    packages=find_packages(include=["hessians", "hessians.*", "laplacian_metric", "laplacian_metric.*"]),
    package_data={
        "hessians": ["py.typed"],
        "laplacian_metric": [
            "py.typed",
            "data/_sample/*.npz",
            "data/_sample/LICENCES",
            "methods/risk/heads/*/*",
            "methods/risk/heads/*/*/*",
            "report/templates/*",
            "serve/assets/*",
        ],
    },
    include_package_data=False,
    zip_safe=False,
    install_requires=BASE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["lam = laplacian_metric.__main__:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
