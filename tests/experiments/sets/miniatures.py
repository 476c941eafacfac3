"""Small data sets in the layouts that the real ones are published in."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Rows = list[dict[str, object]]


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + values.tobytes())


def write_image(path: Path, value: int, size: tuple[int, int] = (12, 10)) -> None:
    """A photograph of one colour; its red says which one it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value % 256, 100, 200)).save(path, quality=95)


def write_csv(path: Path, rows: Rows) -> None:
    """A table with a first column without a name, as pandas writes an index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["", *rows[0]])
        for number, row in enumerate(rows):
            writer.writerow([number, *row.values()])


def idx_set(folder: Path, per_class: int = 12, num_test: int = 30) -> None:
    """MNIST's four files; every image is of the grey value of its position."""
    rng = np.random.default_rng(0)
    for prefix, labels in (
        ("train", rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class))),
        ("t10k", np.arange(num_test, dtype=np.uint8) % 10),
    ):
        images = np.zeros((labels.size, 28, 28), dtype=np.uint8)
        images += np.arange(labels.size, dtype=np.uint8)[:, None, None]
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels)


def fashion_mnist(root: Path) -> None:
    idx_set(root / "FashionMNIST" / "raw")


def mnist(root: Path) -> None:
    idx_set(root / "MNIST" / "raw")


def cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    labels = np.tile(np.arange(10, dtype=np.uint8), 4)
    for number, name in enumerate([*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]):
        records = np.zeros((labels.size, 3073), dtype=np.uint8)
        records[:, 0] = labels
        records[:, 1:1025], records[:, 1025:2049], records[:, 2049:] = number, 100, 200
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    clean = np.tile(labels, 5)
    wrong = (clean + (np.arange(clean.size) % 5 == 0)) % 10
    people = {f"random_label{person}": wrong for person in (1, 2, 3)}
    np.savez(root / "cifar10n.npz", clean_label=clean, aggre_label=clean, worse_label=wrong, **people)
    np.save(root / "cifar10h-probs.npy", 0.9 * np.eye(10)[labels] + 0.01)


def quickdraw(root: Path) -> None:
    folder = root / "quickdraw"
    folder.mkdir(parents=True)
    labels = np.repeat(np.arange(22, dtype=np.int16), 4)
    images = np.zeros((88, 28, 28), dtype=np.uint8) + np.arange(88, dtype=np.uint8)[:, None, None]
    np.savez(
        folder / "quickdraw.npz", x=images, y=labels, classes=np.array([f"thing {n:02d}" for n in range(22)])
    )


def svhn(root: Path) -> None:
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    for name, count in (("train", 40), ("test", 20)):
        labels = np.arange(count) % 10 + 1
        images = np.zeros((32, 32, 3, count), dtype=np.uint8) + labels.astype(np.uint8)
        savemat(root / f"{name}_32x32.mat", {"X": images, "y": labels[:, None].astype(np.uint8)})
    # Without the checksums of the published files.
    SVHN.split_list = {key: (url, file, None) for key, (url, file, _) in SVHN.split_list.items()}


def write_mosaic(path: Path, rows: int, columns: int, side: int, mode: str = "RGB") -> None:
    """Images of one grey value each, ten times their position."""
    values = 10 * np.arange(rows * columns, dtype=np.uint8).reshape(rows, columns)
    pixels = values.repeat(side, axis=0).repeat(side, axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path, lossless=True, quality=100)


def svhn_first(root: Path) -> None:
    write_mosaic(root / "svhn" / "svhn-test-first10000.webp", 3, 4, 32)
    np.save(root / "svhn" / "svhn-test-first10000-labels.npy", (np.arange(12) % 10).astype(np.uint8))


def cifar100(root: Path) -> None:
    write_mosaic(root / "cifar100" / "cifar100-test.webp", 4, 4, 32)
    classes = [["apple", "fruit"], ["bee", "insects"], ["pear", "fruit"], ["wasp", "insects"]]
    (root / "cifar100" / "classes.json").write_text(json.dumps(classes))


def lfw_gray(root: Path) -> None:
    write_mosaic(root / "lfw" / "lfw-gray-64px.jpg", 3, 3, 64, "L")
    names = [
        f"{person}/{person}_{number:04d}.jpg" for person in ("Ann", "Bob", "Cem", "Dee") for number in (1, 2)
    ]
    with gzip.open(root / "lfw" / "names.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write("\n".join(names))
    with gzip.open(root / "lfw" / "pairs.tsv.gz", "wt", encoding="utf-8") as stream:
        stream.write(
            f"file1\tfile2\tsame\tfold\n{names[0]}\t{names[1]}\t1\t1\n{names[5]}\t{names[2]}\t0\t2\n"
        )


def omniglot(root: Path) -> None:
    (root / "omniglot").mkdir()
    character = np.repeat(np.arange(1, 13, dtype=np.int16), 3)
    alphabet = ((character - 1) // 4).astype(np.uint8)
    np.savez(
        root / "omniglot" / "omniglot-28.npz",
        images=np.zeros((36, 28, 28), dtype=np.uint8) + character.astype(np.uint8)[:, None, None],
        character=character,
        alphabet=alphabet,
        drawer=np.tile(np.arange(1, 4, dtype=np.uint8), 12),
        evaluation=alphabet == 1,
        alphabets=np.array(["Greek", "Korean", "Latin"]),
    )


def pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    lines = []
    for label in range(1, 13):
        for number in range(3):
            name = f"Big_breed_{chr(96 + label)}_{number}"
            lines.append(f"{name} {label} {1 + label % 2} {label}")
            write_image(folder / "images" / f"{name}.jpg", len(lines))
    (folder / "annotations").mkdir()
    (folder / "annotations" / "trainval.txt").write_text("\n".join(lines) + "\n")


def cub(root: Path) -> None:
    folder = root / "CUB_200_2011"
    names, labels = [], []
    for label in range(1, 21):
        for image in range(3):
            names.append(f"{label:03d}.Bird_{label}/Bird_{label}_{image:04d}.jpg")
            labels.append(label)
            write_image(folder / "images" / names[-1], len(names))
    numbered = list(enumerate(names, start=1))
    (folder / "images.txt").write_text("".join(f"{number} {name}\n" for number, name in numbered))
    (folder / "image_class_labels.txt").write_text(
        "".join(f"{number} {label}\n" for number, label in enumerate(labels, start=1))
    )
    (folder / "classes.txt").write_text(
        "".join(f"{label} {label:03d}.Bird_{label}\n" for label in range(1, 21))
    )
    (folder / "train_test_split.txt").write_text(
        "".join(f"{number} {number % 2}\n" for number, _ in numbered)
    )


def _annotations(files: list[str], key: str, labels: list[int] | None) -> NDArray[np.void]:
    fields = [(key, object), ("bbox_x1", object), *([("class", object)] if labels else [])]
    rows = np.zeros((1, len(files)), dtype=fields)
    for position, file in enumerate(files):
        rows[0, position][key] = file
        rows[0, position]["bbox_x1"] = 1
        if labels:
            rows[0, position]["class"] = labels[position]
    return rows


def cars(root: Path) -> None:
    """The layout that torchvision has."""
    from scipy.io import savemat

    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    labels = list(range(1, 21))
    files = [f"{number:05d}.jpg" for number in labels]
    for part in ("cars_train", "cars_test"):
        for number, file in enumerate(files):
            write_image(folder / part / file, number + (100 if part == "cars_test" else 0))
    names = np.array([[f"Car {label}" for label in labels]], dtype=object)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    annotations = {"annotations": _annotations(files, "fname", labels)}
    savemat(folder / "devkit" / "cars_train_annos.mat", annotations)
    savemat(folder / "cars_test_annos_withlabels.mat", annotations)


def cars_crops(root: Path) -> None:
    folder = root / "cars196"
    for number in range(40):
        write_image(folder / "cars_train" / f"{number:05d}.jpg", number)
    rows = [f"{number:05d}.jpg,{number % 20 + 1},Car {number % 20 + 1}" for number in range(40)]
    (folder / "labels.csv").write_text("\n".join(["file,class,class_name", *rows]) + "\n")


def products(root: Path) -> None:
    folder = root / "Stanford_Online_Products"
    number = 0
    for name, labels in (("Ebay_train.txt", range(1, 11)), ("Ebay_test.txt", range(11, 21))):
        lines = ["image_id class_id super_class_id path"]
        for label in labels:
            for image in range(2):
                number += 1
                kind = ("bicycle", "cabinet")[label % 2]
                path = f"{kind}_final/{label:012d}_{image}.JPG"
                lines.append(f"{number} {label} {label % 2 + 1} {path}")
                write_image(folder / path, number)
        (folder / name).write_text("\n".join(lines) + "\n")


def lfw(root: Path) -> None:
    folder = root / "lfw"
    people = {f"Person_{number:02d}": number % 3 + 1 for number in range(20)}
    for person, count in people.items():
        for image in range(1, count + 1):
            write_image(folder / "lfw-deepfunneled" / person / f"{person}_{image:04d}.jpg", image)
    listed = list(people.items())
    for name, part in (("peopleDevTrain", listed[::2]), ("peopleDevTest", listed[1::2])):
        lines = [str(len(part)), *(f"{person}\t{count}" for person, count in part)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def msls(root: Path, cities: tuple[str, ...] = ("cph", "sf")) -> None:
    for place, city in enumerate(cities):
        for part, count in (("query", 3), ("database", 4)):
            folder = root / "msls" / "train_val" / city / part
            keys = [f"{city}{part}{number}" for number in range(count)]
            for number, key in enumerate(keys):
                write_image(folder / "images" / f"{key}.jpg", number)
            write_csv(
                folder / "postprocessed.csv",
                [
                    {
                        "key": key,
                        "easting": 500_000.0 + 8 * number + (3 if part == "query" else 0),
                        "northing": 6_000_000.0,
                        "night": False,
                        "control_panel": False,
                        "view_direction": "Forward",
                        "unique_cluster": place,
                    }
                    for number, key in enumerate(keys)
                ],
            )
            write_csv(
                folder / "raw.csv",
                [
                    {
                        "key": key,
                        "lon": 12.5,
                        "lat": 55.6,
                        "ca": 1.0,
                        "captured_at": "2018",
                        "pano": number == 2,
                    }
                    for number, key in enumerate(keys)
                ],
            )


def class_folders(root: Path, classes: tuple[str, ...] = ("apple", "pear"), count: int = 20) -> Path:
    for label, name in enumerate(classes):
        for number in range(count):
            write_image(root / name / f"{number:03d}.jpg", 10 * label + number)
    return root


MINIATURES: dict[str, Callable[[Path], None]] = {
    "cars-196": cars,
    "cars-196-crops": cars_crops,
    "cifar-10": cifar10,
    "cifar-100-test": cifar100,
    "cub-200-2011": cub,
    "fashion-mnist": fashion_mnist,
    "lfw": lfw,
    "lfw-gray": lfw_gray,
    "mnist": mnist,
    "n-digit-mnist": mnist,
    "omniglot": omniglot,
    "oxford-pets": pets,
    "quickdraw": quickdraw,
    "stanford-online-products": products,
    "svhn": svhn,
    "svhn-first-10000": svhn_first,
}
