"""Sources of training text: the reader's own standard library, a pinned download, a file or a folder.

A corpus is lazy: `load` looks at names, sizes and times, and at the start of a file; text is read while `documents` is
iterated.
"""

import hashlib
import http.client
import os
import platform
import re
import sysconfig
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_files import is_run
from ddp_course.data.text_files import (
    BLOCK,
    TextFile,
    digest_of_text,
    files_below,
    input_errors,
    line_start_near,
    read_chunks,
    readable_file,
    text_file,
)

STDLIB = "stdlib"
FEW_FILES = 20  # with at least this many files, every 20th is held out; with fewer, the last 5 % of each file
EXCLUDED_FOLDERS = re.compile(r"_?tests?|test_.*|.*_tests?|site-packages|dist-packages|__pycache__")


@dataclass(frozen=True)
class Download:
    """A file of text to download. sha256: the checksum that its content must have."""

    url: str
    sha256: str
    licence: str


DOWNLOADS = {
    "shakespeare": Download(
        url="https://raw.githubusercontent.com/karpathy/char-rnn/"
        "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        licence="Shakespeare's plays are in the public domain",
    )
}


@dataclass(frozen=True)
class Corpus:
    """Text to train on and text to validate on.

    `fingerprint` is cheap and changes when the text may have changed: a hash over names, sizes and
    modification times (for the standard library over the Python version too, for a download the checksum of
    its content).
    """

    name: str
    fingerprint: str
    root: Path
    files: tuple[TextFile, ...]

    @cached_property
    def text_files(self) -> tuple[TextFile, ...]:
        """The files that hold text, without duplicates. Reads every file, 1 MB at a time.

        A copy of a file is dropped because it could land in the other split, and validation text must not be
        training text. Raises InputError if a file cannot be read, or if the corpus is one file and that is not text.
        """
        first_with: dict[bytes, TextFile] = {}
        for file in self.files:
            digest = digest_of_text(file.path)
            if digest is not None:
                first_with.setdefault(digest, file)
            elif file.path == self.root:
                raise _not_text(self.root)
        return tuple(first_with.values())

    def documents(self, split: str) -> Iterator[str]:
        """Yield the documents of "train" or "val", in a fixed order, read from disk one at a time.

        With 20 text files or more, every 20th file is validation text. With fewer, the last 5 % of each file is, from
        the start of a line (of a character, if no line starts near). A file above 2 MB is several documents.
        """
        holds_out_files = len(self.text_files) >= FEW_FILES
        for index, file in enumerate(self.text_files):
            if holds_out_files:
                cut = 0 if index % FEW_FILES == FEW_FILES - 1 else file.size
            else:
                cut = line_start_near(file, 0.95)
            yield from read_chunks(file, 0, cut) if split == "train" else read_chunks(file, cut, file.size)


def load(data: str) -> Corpus:
    """Find the corpus named by `data`: "stdlib", a name in DOWNLOADS, or else the path of a file or folder.

    A name always wins; for a folder with the same name, write "./stdlib". Hidden files, files that are not UTF-8 text,
    and the folders of runs, which change during training, are left out of a folder.
    Raises InputError if there is no such corpus, or if it is empty, not text, unreadable or cannot be downloaded.
    """
    if data == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = files_below(
            root,
            keep_folder=lambda path: not EXCLUDED_FOLDERS.fullmatch(path.name),
            keep_file=lambda path: path.name.endswith(".py"),
        )
        return _corpus_of(STDLIB, root, files, salt=f"Python {platform.python_version()}")
    if data in DOWNLOADS:
        path = _downloaded(data, DOWNLOADS[data])
        return Corpus(data, DOWNLOADS[data].sha256, path, (text_file(path),))
    path = os.path.expanduser(data)
    if not data or not os.path.exists(path):
        names = ", ".join([STDLIB, *DOWNLOADS])
        raise InputError(f'no corpus "{data}": it is neither a file or folder that exists nor one of {names}')
    with input_errors(Path(path)):
        root = Path(path).resolve()
    if root.is_dir():
        files = files_below(root, keep_folder=lambda path: not is_run(path))
    elif root.is_file():
        with input_errors(root):
            file = readable_file(root)
        files = (file,) if file.size else ()
    else:
        raise InputError(f"{root} is neither a file nor a folder: a corpus is read from files of text")
    return _corpus_of(root.name or "data", root, files)


def cache_folder() -> Path:
    """The folder of downloads and token files.

    $DDP_COURSE_CACHE, or else $XDG_CACHE_HOME/ddp_course, or else ~/.cache/ddp_course.
    """
    if folder := os.environ.get("DDP_COURSE_CACHE"):
        return Path(folder).absolute()
    if parent := os.environ.get("XDG_CACHE_HOME"):
        return Path(parent).absolute() / "ddp_course"
    try:
        return Path.home() / ".cache" / "ddp_course"
    except RuntimeError as error:
        raise InputError("no home folder to keep a cache in: set DDP_COURSE_CACHE to a folder") from error


def make_folder(path: Path) -> Path:
    """Create a folder of the cache. Raises InputError if that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create the folder {path} ({error.strerror}): set DDP_COURSE_CACHE to another"
        ) from error
    return path


def _corpus_of(name: str, root: Path, files: tuple[TextFile, ...], salt: str = "") -> Corpus:
    """The corpus of `files`, with `salt` in its fingerprint. Raises InputError for no files, or no text in them."""
    if not files:
        raise InputError(f"{root} is empty: a corpus needs at least one file with text")
    # This reads only the first block of each file, and stops at the first file with text, so that a start with a full
    # cache stays cheap. `text_files` checks all of every file.
    if all(digest_of_text(file.path, at_most=BLOCK) is None for file in files):
        if root.is_file():
            raise _not_text(root)
        raise InputError(f"{root} holds no text: none of its {len(files)} files is UTF-8 without NUL bytes")
    digest = hashlib.sha256(f"{name}\0{salt}\0".encode("utf-8", "surrogateescape"))
    for file in files:
        relative = os.fsencode(file.path.relative_to(root).as_posix())
        digest.update(b"%s\0%d\0%d\0" % (relative, file.size, file.changed))
    return Corpus(name, digest.hexdigest(), root, files)


def _not_text(path: Path) -> InputError:
    return InputError(f"{path} is not text: it holds NUL bytes or is not UTF-8, expected UTF-8 text")


def _downloaded(name: str, download: Download) -> Path:
    """The path of a download, fetched if it is not in the cache with the right checksum."""
    path = make_folder(cache_folder() / "downloads") / f"{name}.txt"
    if path.exists():
        with input_errors(path), open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == download.sha256:
                return path
    try:
        digest = hashlib.sha256()
        with urllib.request.urlopen(download.url, timeout=30) as response, replacing(path, "wb") as file:
            while block := response.read(BLOCK):
                digest.update(block)
                file.write(block)
            if digest.hexdigest() != download.sha256:  # raised inside `replacing`: the final file is not written
                raise InputError(
                    f"the download of {name} from {download.url} has the wrong checksum: "
                    f"expected {download.sha256}, found {digest.hexdigest()}"
                )
    except (OSError, http.client.HTTPException) as error:  # URLError, HTTPError and time-outs are OSErrors
        raise InputError(
            f"the download of {name} from {download.url} failed ({error}): "
            f"check the network, or pass the path of a text file instead"
        ) from error
    return path
