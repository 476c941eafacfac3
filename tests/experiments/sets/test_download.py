"""Downloads from a server on this machine: checked, resumed, tried again, complete or not there; two processes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from experiments.sets import cifar10, cub, fashion_mnist, mnist, products, svhn
from experiments.sets.download import fetch
from laplacian_metric import data
from laplacian_metric.data import DownloadError, MissingDataError, source
from tests.experiments.sets import miniatures
from tests.experiments.sets.test_archives import write_tar, write_zip

CONTENT = bytes(range(256)) * 1000


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass
class Site:
    """A small web site: what it serves, how often it breaks off, and what was asked of it."""

    files: dict[str, bytes] = field(default_factory=dict)
    breaks: int = 0  # how many answers end after half of what they announce
    errors: list[int] = field(default_factory=list)  # status codes to answer with first
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    ranges: bool = True
    url: str = ""


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            byte_range = self.headers.get("Range")
            site.requests.append((self.path, byte_range))
            if site.errors:
                self.send_error(site.errors.pop(0))
                return
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(byte_range.removeprefix("bytes=").rstrip("-")) if byte_range and site.ranges else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            rest = content[start:]
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if site.breaks:
                site.breaks -= 1
                rest = rest[: len(rest) // 2]
            self.wfile.write(rest)

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    return Handler


@pytest.fixture
def site() -> Iterator[Site]:
    started = Site(files={"/file.bin": CONTENT})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(started))
    started.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield started
    server.shutdown()
    server.server_close()
    thread.join()


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_arrives_whole(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.bin"
    assert fetch(site.url + "file.bin", target, md5=md5(CONTENT)) == target
    assert target.read_bytes() == CONTENT
    assert visible(target.parent) == ["file.bin"]
    fetch(site.url + "file.bin", target, md5=md5(CONTENT))
    assert len(site.requests) == 1


def test_a_file_of_this_machine_arrives_too(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(CONTENT)
    assert fetch(source.as_uri(), tmp_path / "copy.bin", md5=md5(CONTENT)).read_bytes() == CONTENT
    with pytest.raises(DownloadError, match=r"absent.bin could not be downloaded \(2 of 2 attempts\)"):
        fetch((tmp_path / "absent.bin").as_uri(), tmp_path / "other.bin", attempts=2, wait=0)
    with pytest.raises(ValueError, match="must begin with one of: https, http, ftp, file"):
        fetch("gopher://somewhere", tmp_path / "other.bin")


def test_a_transfer_that_breaks_off_goes_on(site: Site, tmp_path: Path) -> None:
    site.breaks = 2
    target = fetch(site.url + "file.bin", tmp_path / "file.bin", md5=md5(CONTENT), wait=0)
    assert target.read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert [byte_range for _, byte_range in site.requests] == [
        None,
        f"bytes={half}-",
        f"bytes={half + half // 2}-",
    ]


def test_without_a_checksum_or_ranges_it_begins_anew(site: Site, tmp_path: Path) -> None:
    site.breaks = 1
    assert fetch(site.url + "file.bin", tmp_path / "a.bin", wait=0).read_bytes() == CONTENT
    assert [byte_range for _, byte_range in site.requests] == [None, None]
    site.breaks, site.ranges = 1, False
    assert fetch(site.url + "file.bin", tmp_path / "b.bin", md5=md5(CONTENT), wait=0).read_bytes() == CONTENT


def test_what_breaks_off_every_time_stays_partial(site: Site, tmp_path: Path) -> None:
    site.breaks = 99
    with pytest.raises(DownloadError, match=r"could not be downloaded \(3 of 3 attempts\)"):
        fetch(site.url + "file.bin", tmp_path / "file.bin", md5=md5(CONTENT), wait=0)
    assert visible(tmp_path) == ["file.bin.part"]
    site.breaks = 0
    assert fetch(site.url + "file.bin", tmp_path / "file.bin", md5=md5(CONTENT)).read_bytes() == CONTENT
    assert site.requests[-1][1] is not None


@pytest.mark.parametrize("junk", [b"something else", CONTENT + b"too long"])
def test_a_wrong_part_is_thrown_away(junk: bytes, site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(junk)
    assert (
        fetch(site.url + "file.bin", tmp_path / "file.bin", md5=md5(CONTENT), wait=0).read_bytes() == CONTENT
    )


def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"file.bin is .*, its publisher gives 0000"):
        fetch(site.url + "file.bin", tmp_path / "file.bin", md5="0" * 32, attempts=2, wait=0)
    assert visible(tmp_path) == []
    (tmp_path / "file.bin").write_bytes(b"damaged")
    with pytest.raises(DownloadError, match="has another checksum than its publisher gives; delete it"):
        fetch(site.url + "file.bin", tmp_path / "file.bin", md5=md5(CONTENT))


def test_errors_of_the_server(site: Site, tmp_path: Path) -> None:
    site.errors = [503, 500]
    assert fetch(site.url + "file.bin", tmp_path / "file.bin", wait=0).read_bytes() == CONTENT
    site.requests.clear()
    with pytest.raises(DownloadError, match=r"absent.bin could not be downloaded \(1 of 3 attempts\): .*404"):
        fetch(site.url + "absent.bin", tmp_path / "absent.bin", wait=0)
    assert len(site.requests) == 1


def test_a_file_that_is_too_large(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="larger than the 1000 bytes allowed"):
        fetch(site.url + "file.bin", tmp_path / "file.bin", max_bytes=1000)
    assert visible(tmp_path) == []


def serve_idx(site: Site, folder: Path) -> dict[str, str]:
    """Put a miniature of four gzipped IDX files on the site; returns their checksums."""
    miniatures.idx_set(folder, zipped=True)
    checksums = {}
    for path in folder.iterdir():
        site.files[f"/{path.name}"] = path.read_bytes()
        checksums[path.name] = md5(path.read_bytes())
    return checksums


def test_a_data_set_is_downloaded_on_request(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "CHECKSUMS", serve_idx(site, tmp_path / "served"))
    monkeypatch.setattr(fashion_mnist, "MIRROR", site.url)
    place = tmp_path / "data"
    with pytest.raises(MissingDataError):
        data.load("fashion-mnist", split="test", data_dir=place)
    assert not site.requests
    assert len(data.load("fashion-mnist", split="test", data_dir=place, download="unverified")) == 30
    assert len(site.requests) == 4
    data.load("fashion-mnist", split="train", data_dir=place, download="unverified", held_out=20)
    assert len(site.requests) == 4
    # torchvision takes the same files from the same place.
    assert (place / "FashionMNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").is_file()


@pytest.mark.parametrize(
    ("name", "module", "miniature", "write", "archive"),
    [
        ("cifar-10", cifar10, miniatures.cifar10, write_tar, "cifar-10-binary.tar.gz"),
        ("cub-200-2011", cub, miniatures.cub, write_tar, "CUB_200_2011.tgz"),
        (
            "stanford-online-products",
            products,
            miniatures.products,
            write_zip,
            "Stanford_Online_Products.zip",
        ),
    ],
)
def test_an_archive_is_downloaded_and_unpacked(
    name: str,
    module: object,
    miniature: object,
    write: object,
    archive: str,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    miniature(source)  # type: ignore[operator]
    members = {
        path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()
    }
    packed = write(tmp_path / archive, members).read_bytes()  # type: ignore[operator]
    site.files[f"/{archive}"] = packed
    monkeypatch.setattr(module, "URL", site.url + archive)
    if hasattr(module, "MD5"):
        monkeypatch.setattr(module, "MD5", md5(packed))
    options = {"held_out": 20} if name == "cifar-10" else {}
    place = tmp_path / "data"
    loaded = data.load(name, data_dir=place, download="unverified", **options)
    expected = data.load(name, data_dir=source, **options)
    assert loaded.labels.tolist() == expected.labels.tolist()
    assert loaded[0][0].shape == expected[0][0].shape
    assert len(site.requests) == 1


def test_matlab_files_are_downloaded_one_by_one(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    miniatures.svhn(source)
    content = (source / "test_32x32.mat").read_bytes()
    site.files["/test_32x32.mat"] = content
    monkeypatch.setattr(svhn, "URL", site.url)
    monkeypatch.setattr(svhn, "CHECKSUMS", {"test_32x32.mat": md5(content)})
    assert len(data.load("svhn", split="test", data_dir=tmp_path / "data", download="unverified")) == 20
    assert [path for path, _ in site.requests] == ["/test_32x32.mat"]


def test_human_labels_are_downloaded_when_insisted_on(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    miniatures.cifar10(tmp_path)
    labels = tmp_path / "cifar10h-probs.npy"
    site.files["/cifar10h-probs.npy"] = labels.read_bytes()
    labels.unlink()
    monkeypatch.setattr(cifar10, "URL_H", site.url + "cifar10h-probs.npy")
    assert not data.load("cifar-10", split="test", data_dir=tmp_path, download="unverified").extras
    loaded = data.load("cifar-10", split="test", data_dir=tmp_path, download="unverified", human_labels=True)
    assert loaded.extras["human_distribution"].shape == (40, 10)


def in_two_processes(setup: str, call: str, root: Path) -> list[str]:
    """What two processes print that begin the same call at the same time."""
    code = f"import sys\nfrom laplacian_metric import data\n{setup}\nsys.stdin.readline()\nprint({call})\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=120)[0].strip() for process in processes]


def test_two_processes_download_once(site: Site, tmp_path: Path, root: Path) -> None:
    checksums = serve_idx(site, tmp_path / "served")
    setup = f"from experiments.sets import mnist\nmnist.MIRROR, mnist.CHECKSUMS = {site.url!r}, {checksums!r}"
    call = (
        f"len(data.load('mnist', split='test', data_dir={str(tmp_path / 'data')!r}, download='unverified'))"
    )
    assert in_two_processes(setup, call, root) == ["30", "30"]
    assert sorted(path for path, _ in site.requests) == sorted(f"/{name}" for name in checksums)


def test_two_processes_unpack_once(site: Site, tmp_path: Path, root: Path) -> None:
    miniatures.cub(tmp_path / "source")
    files = [path for path in (tmp_path / "source").rglob("*") if path.is_file()]
    members = {path.relative_to(tmp_path / "source").as_posix(): path.read_bytes() for path in files}
    # Enough more for the first process to be still unpacking when the second one gets there.
    members |= {f"CUB_200_2011/attributes/{number}.txt": b"1" for number in range(2000)}
    packed = write_tar(tmp_path / "birds.tgz", members).read_bytes()
    site.files["/birds.tgz"] = packed
    setup = (
        f"from experiments.sets import cub\ncub.URL, cub.MD5 = {site.url + 'birds.tgz'!r}, {md5(packed)!r}"
    )
    call = f"len(data.load('cub-200-2011', split='test', data_dir={str(tmp_path / 'data')!r}, download='unverified'))"
    assert in_two_processes(setup, call, root) == ["30", "30"]
    assert len(site.requests) == 1
    assert visible(tmp_path / "data") == ["CUB_200_2011", "birds.tgz"]


def test_a_failed_download_says_where_else_the_data_are(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cub, "URL", site.url + "CUB_200_2011.tgz")
    with pytest.raises(
        DownloadError, match=r"404.*; CUB-200-2011 is published at https://data.caltech.edu/records"
    ):
        data.load("cub-200-2011", data_dir=tmp_path, download="unverified")


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("svhn", {}, "its address is not encrypted"),
        ("stanford-online-products", {}, "not encrypted and no checksum of it is published"),
        ("cifar-10", {"human_labels": True, "split": "test"}, "no checksum of it is published"),
    ],
)
def test_what_cannot_be_verified_is_fetched_only_where_that_is_accepted(
    name: str, options: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "cifar-10":
        miniatures.cifar10(tmp_path)
        (tmp_path / "cifar10h-probs.npy").unlink()
    tried: list[str] = []

    def attempt(url: str, target: Path, **_: object) -> Path:
        tried.append(url)
        raise DownloadError("there is no network here")

    monkeypatch.setattr(source, "fetch", attempt)
    with pytest.raises(DownloadError, match=f'was not downloaded: .*{reason}.*download="unverified"'):
        data.load(name, data_dir=tmp_path, download=True, **options)
    assert not tried
    with pytest.raises(DownloadError, match="there is no network here"):
        data.load(name, data_dir=tmp_path, download="unverified", **options)
    assert len(tried) == 1


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist", "cifar-10", "cub-200-2011"])
def test_the_other_addresses_are_encrypted_and_have_checksums(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, str | None]] = []

    def attempt(url: str, target: Path, md5: str | None = None) -> Path:
        tried.append((url, md5))
        raise DownloadError("there is no network here")

    monkeypatch.setattr(source, "fetch", attempt)
    with pytest.raises(DownloadError, match="there is no network here"):
        data.load(name, data_dir=tmp_path, download=True)
    ((url, md5),) = tried
    assert url.startswith("https://")
    assert md5 is not None
    assert len(md5) == 32


def test_checksums_are_those_that_torchvision_has() -> None:
    try:
        import torchvision.datasets as sets
    except (ImportError, RuntimeError) as error:  # the latter where it was built for another torch
        pytest.skip(f"torchvision cannot be imported: {error}")
    assert dict(sets.MNIST.resources) == mnist.CHECKSUMS
    assert dict(sets.FashionMNIST.resources) == fashion_mnist.CHECKSUMS
    for split in ("train", "test"):
        url, name, checksum = sets.SVHN.split_list[split]
        assert url == svhn.URL + name
        assert checksum == svhn.CHECKSUMS[name]
    assert mnist.MIRROR in sets.MNIST.mirrors
