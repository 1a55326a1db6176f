"""The training data: corpora, tokenizers, token files and windows."""

import hashlib
import http.server
import importlib.util
import json
import os
import random
import subprocess
import sys
import sysconfig
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from disturbance import flip_a_bit, full_disk

from ddp_course.base.errors import InputError
from ddp_course.data import corpora, text_files, token_file, tokenizer, windows

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("own_cache")]

NEEDS_RUSTBPE = pytest.mark.skipif(importlib.util.find_spec("rustbpe") is None, reason="needs rustbpe")
TOKENIZERS = ("bytes", "bpe", pytest.param("rustbpe", marks=NEEDS_RUSTBPE))
SENTENCE = 'def add(a, b):\n\treturn a + b  # ünïcödé, 中文, 🐍 and "<|endoftext|>"\r\n'


def write_files(folder: Path, contents: dict[str, str | bytes]) -> Path:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def numbered_files(folder: Path, count: int) -> Path:
    return write_files(folder, {f"{i:03}.txt": f"file {i}\n{SENTENCE * 5}" for i in range(count)})


@pytest.fixture
def data(tmp_path) -> str:
    """A folder of three files."""
    return str(numbered_files(tmp_path / "many", 3))


def text_of(corpus: corpora.Corpus, split: str) -> str:
    return "".join(corpus.documents(split))


def splits(corpus: corpora.Corpus) -> tuple[list[str], list[str]]:
    """The documents to train on, and those to validate on."""
    return list(corpus.documents("train")), list(corpus.documents("val"))


# -------------------------------------------------------------------------------------------------- corpora


@pytest.mark.skipif(not Path("/proc/filesystems").exists(), reason="needs /proc")
def test_a_file_that_says_it_is_empty_and_is_not_is_read():
    file = Path("/proc/filesystems")
    assert file.stat().st_size == 0
    corpus = corpora.load(str(file))
    assert text_of(corpus, "train") and text_of(corpus, "val")
    assert text_of(corpus, "train") + text_of(corpus, "val") == file.read_text()


def test_from_20_files_on_every_20th_is_validation(tmp_path):
    folder = numbered_files(tmp_path / "many", 45)
    write_files(folder, {"010-picture.bin": b"\x89PNG\0\0", ".hidden/secret.txt": "no", "empty.txt": ""})
    train, val = splits(corpora.load(str(folder)))
    assert [text.split("\n")[0] for text in val] == ["file 19", "file 39"]
    assert len(train) == 43 and not set(train) & set(val)
    assert "no" not in train + val


@pytest.mark.parametrize("count", [1, 3, 19])
def test_below_20_files_the_end_of_each_is_validation(tmp_path, count):
    lines = "".join(f"line {n}\r\n" for n in range(400))
    contents = {f"{i:02}.txt": f"{i}\r\n{lines}" for i in range(count)}
    folder = write_files(tmp_path / "few", contents | {"picture.bin": b"\x89PNG\0"})  # not counted as the 20th
    train, val = splits(corpora.load(str(folder)))
    assert [a + b for a, b in zip(train, val, strict=True)] == list(contents.values())
    for text in val:
        assert text.startswith("line 38") and text.endswith("line 399\r\n")


@pytest.mark.parametrize(
    "content, val",
    [
        ("é" * 101, "é" * 5),  # no line end: cut at a character, never inside
        ("中" * 50, "中" * 2),
        ("a\nb\n", "b\n"),
        ("short\n" + "x" * 100, "x" * 6),  # the only line start is far away
        ("x" * 60 + "\n" + "y" * 39 + "\n", "y" * 39 + "\n"),
    ],
)
def test_cut_of_a_file_without_a_line_start_near_the_end(tmp_path, content, val):
    corpus = corpora.load(str(write_files(tmp_path / "one", {"a.txt": content}) / "a.txt"))
    assert text_of(corpus, "train") + text_of(corpus, "val") == content
    assert text_of(corpus, "val") == val


def test_a_copy_of_a_file_is_not_in_both_splits(tmp_path):
    folder = numbered_files(tmp_path / "many", 40)
    (folder / "019.txt").write_bytes((folder / "000.txt").read_bytes())
    train, val = splits(corpora.load(str(folder)))
    assert len(train) + len(val) == 39 and not set(train) & set(val)


def test_a_long_file_is_cut_into_documents_after_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "CHUNK", 64)
    content = "".join(f"{'中' * (n % 60)}\r\n" for n in range(300))
    corpus = corpora.load(str(write_files(tmp_path / "one", {"a.txt": content}) / "a.txt"))
    train = list(corpus.documents("train"))
    assert "".join(train) + text_of(corpus, "val") == content
    assert max(len(text.encode()) for text in train) <= 64
    inside_a_line = [text for text in train if not text.endswith("\n")]
    assert 0 < len(inside_a_line) < len(train) and "\n" not in "".join(inside_a_line)


def test_fingerprint_follows_names_sizes_and_times(data):
    file, fingerprints = Path(data, "000.txt"), []
    for change in (
        lambda: None,
        lambda: os.utime(file, ns=(1, 1)),
        lambda: Path(data, "001.txt").rename(Path(data, "001b.txt")),
        lambda: (file.write_text("longer" * 99), os.utime(file, ns=(1, 1))),
    ):
        change()
        fingerprints.append(corpora.load(data).fingerprint)
        assert corpora.load(data).fingerprint == fingerprints[-1]
    assert len(set(fingerprints)) == 4


@pytest.mark.parametrize(
    "contents, path, message",
    [
        ({}, "missing.txt", "neither a file or folder that exists nor one of stdlib, shakespeare"),
        ({"a.txt": ""}, "a.txt", "is empty"),
        ({"folder/a.txt": "", "folder/.b": "hidden"}, "folder", "is empty"),
        ({"folder/.b": "hidden"}, "folder", "is empty"),
        ({"a.txt": b"abc\0def"}, "a.txt", "not text"),
        ({"a.txt": "é".encode()[:1]}, "a.txt", "not text"),
        ({"a.txt": b"abc\xff"}, "a.txt", "not text"),
        ({"folder/a.bin": b"\0", "folder/b.bin": b"\xff"}, "folder", "none of its 2 files"),
    ],
)
def test_bad_corpora_are_input_errors(tmp_path, contents, path, message):
    write_files(tmp_path, contents)
    with pytest.raises(InputError, match=message):
        corpora.load(str(tmp_path / path))


TRAINER_CONFIG = '{"run_dir": "runs/x", "resume": "no", "world_size": 2}'
SPEEDRUN_CONFIG = '{"preset": "tiny", "stages": {}}'


@pytest.mark.parametrize(
    "run_files",
    [
        {"config.json": TRAINER_CONFIG, "metrics.jsonl": '{"step": 1}', "samples.txt": "=== after 1 steps ==="},
        {"checkpoints/step_000001/state.pt": "a", "latest": "step_000001"},
        {"speedrun.json": SPEEDRUN_CONFIG, "report.md": "# Report", "pretrain/samples.txt": "text"},
    ],
    ids=["settings", "a checkpoint", "a speedrun"],
)
def test_a_run_in_the_folder_of_a_corpus_is_no_part_of_it(data, run_files):
    """A run writes while it trains: read as data, its files would change the fingerprint before every resume."""
    folder = Path(data)
    write_files(folder, {"settings/config.json": '{"seed": 1}'})
    initial = corpora.load(str(folder))
    write_files(folder / "runs" / "x", run_files)
    after = corpora.load(str(folder))
    assert after.fingerprint == initial.fingerprint and len(after.files) == 4
    if "samples.txt" in run_files:
        assert len(corpora.load(str(folder / "runs" / "x")).files) == 3, "a run's own folder is read as data"


@pytest.mark.parametrize("data", ["", "standardlib", "a\0b", "x" * 5000, "~nobody-of-this-name/text"])
def test_data_that_is_neither_name_nor_path_is_an_input_error_that_lists_the_names(data):
    with pytest.raises(InputError, match="stdlib, shakespeare"):
        corpora.load(data)


def test_a_pipe_is_not_a_corpus(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        corpora.load(str(tmp_path / "pipe"))


def test_binary_data_late_in_a_file_is_an_input_error_before_the_first_document(tmp_path):
    write_files(tmp_path, {"a.txt": b"line\n" * 300_000 + b"\0"})
    with pytest.raises(InputError, match="not text"):
        next(corpora.load(str(tmp_path / "a.txt")).documents("train"))


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_input_error(tmp_path):
    file = write_files(tmp_path, {"a.txt": "line\n" * 100}) / "a.txt"
    documents = corpora.load(str(file)).documents("train")
    os.truncate(file, 10)
    with pytest.raises(InputError, match="became shorter while it was read"):
        list(documents)


def test_unreadable_files_and_folders_are_input_errors(data, monkeypatch):
    def refuse(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:  # permissions do not bind the root user, who may run this test
        patch.setattr(text_files, "open", refuse, raising=False)
        with pytest.raises(InputError, match="cannot read .*000.txt: Permission denied"):
            corpora.load(data)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(InputError, match="cannot read .*many: Permission denied"):
            corpora.load(data)


def test_a_name_wins_over_a_folder_called_like_it(tmp_path, monkeypatch):
    write_files(tmp_path, {"stdlib/a.txt": "other\n" * 50})
    monkeypatch.chdir(tmp_path)
    assert corpora.load("stdlib").root == Path(sysconfig.get_paths()["stdlib"])
    assert set(text_of(corpora.load("./stdlib"), "train").split()) == {"other"}


def test_the_standard_library_is_a_corpus(monkeypatch):
    corpus = corpora.load("stdlib")
    names = [file.path.relative_to(corpus.root).as_posix() for file in corpus.text_files]
    assert names == sorted(names) and len(names) == len(set(names)) > 300
    assert {"argparse.py", "json/decoder.py", "unittest/case.py"} <= set(names)
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "idle_test", "test_json", "site-packages", "__pycache__"}
    assert all(name.endswith(".py") for name in names)
    train, val = splits(corpus)
    assert len(val) == len(names) // 20 and not set(train) & set(val)
    assert sum(map(len, train)) > 5e6
    monkeypatch.setattr(corpora.platform, "python_version", lambda: "4.0.0")
    assert corpora.load("stdlib").fingerprint != corpus.fingerprint


def test_cache_folder(tmp_path, monkeypatch):
    assert corpora.cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("DDP_COURSE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert corpora.cache_folder() == tmp_path / "xdg" / "ddp_course"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert corpora.cache_folder() == tmp_path / ".cache" / "ddp_course"


# ------------------------------------------------------------------------------------------------ downloads


@pytest.fixture
def server(monkeypatch):
    """A web server on this machine: `pages` maps a path to its content, `requests` lists the paths asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.requests.append(self.path)
            content = self.server.pages.get(self.path)
            self.send_response(404 if content is None else 200)
            if content is not None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write((content or b"")[: self.server.sends_at_most])

        def log_message(self, *arguments):
            pass

    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.pages, running.requests, running.sends_at_most = {}, [], None
        running.url = f"http://127.0.0.1:{running.server_port}"
        threading.Thread(target=running.serve_forever, args=[0.01], daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def play(server, monkeypatch):
    content = b"To be, or not to be\n" * 100
    server.pages["/play.txt"] = content
    sha256 = hashlib.sha256(content).hexdigest()
    download = corpora.Download(f"{server.url}/play.txt", sha256, "public domain")
    monkeypatch.setitem(corpora.DOWNLOADS, "play", download)
    return content


def test_a_download_is_fetched_once_and_again_if_it_is_damaged(server, play, own_cache):
    for _ in range(2):
        corpus = corpora.load("play")
        assert (text_of(corpus, "train") + text_of(corpus, "val")).encode() == play
    assert server.requests == ["/play.txt"]
    assert corpus.fingerprint == hashlib.sha256(play).hexdigest()
    (own_cache / "downloads" / "play.txt").write_bytes(play[:-1])
    assert text_of(corpora.load("play"), "val")
    assert server.requests == ["/play.txt"] * 2
    assert (own_cache / "downloads" / "play.txt").read_bytes() == play


def test_a_download_with_the_wrong_checksum_is_refused(server, play, own_cache):
    server.pages["/play.txt"] = play + b"!"
    with pytest.raises(InputError) as error:
        corpora.load("play")
    assert hashlib.sha256(play).hexdigest() in str(error.value)
    assert hashlib.sha256(play + b"!").hexdigest() in str(error.value)
    assert list((own_cache / "downloads").iterdir()) == []


@pytest.mark.parametrize("fault", ["404", "cut short", "no server"])
def test_a_failed_download_leaves_nothing(server, play, own_cache, monkeypatch, fault):
    if fault == "404":
        server.pages.clear()
    elif fault == "cut short":
        server.sends_at_most = 100
    else:
        unreachable = corpora.Download("http://127.0.0.1:9/play.txt", "0" * 64, "public domain")
        monkeypatch.setitem(corpora.DOWNLOADS, "play", unreachable)
    with pytest.raises(InputError, match="download of play"):
        corpora.load("play")
    assert list((own_cache / "downloads").iterdir()) == []


# ----------------------------------------------------------------------------------------------- tokenizers


def training_documents() -> list[str]:
    paths = [Path(json.__file__), Path(random.__file__), Path(json.__file__).with_name("decoder.py")]
    return [path.read_text(encoding="utf-8") for path in paths] + [SENTENCE * 20]


@pytest.fixture(scope="module", params=TOKENIZERS)
def built(request):
    return tokenizer.build(request.param, training_documents(), None if request.param == "bytes" else 600)


def random_text(seed: int) -> str:
    """Text of characters from all over Unicode, without NUL and surrogates."""
    source = random.Random(seed)
    ranges = [(1, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000), (0x20, 0x21), (0x0A, 0x0E)]
    return "".join(chr(source.randrange(*source.choice(ranges))) for _ in range(source.randrange(200)))


def test_text_comes_back_exactly(built):
    texts = ["", " ", "\t\tx = 1\r\n\r\n", "\ufeffBOM", "e\u0301 é", "<|endoftext|>", "a" * 3000, SENTENCE]
    for text in texts + [random_text(seed) for seed in range(200)] + training_documents():
        ids = built.encode(text)
        assert built.decode(ids) == text
        assert built.end_of_text not in ids
        assert all(0 <= token < built.vocab_size for token in ids)


def test_a_blank_of_a_million_characters_comes_back(built):
    text = "x" + " " * 1_000_000 + "y" + "\n" * 300_000
    assert built.decode(built.encode(text)) == text


def test_decode_never_raises(built):
    source = random.Random(0)
    for _ in range(50):
        ids = [source.randrange(-10, built.vocab_size + 10) for _ in range(100)]
        assert isinstance(built.decode(ids), str)
        assert built.decode(np.array(ids)) == built.decode(torch.tensor(ids)) == built.decode(ids)
    assert built.decode([built.vocab_size, -1]) == "\ufffd\ufffd"
    assert built.decode([*built.encode("a"), built.end_of_text]) == "a<|endoftext|>"
    assert built.decode(built.encode("é")[:1]) in ("é", "\ufffd")


def test_building_is_deterministic_and_the_state_is_all(built):
    again = tokenizer.build(built.name, iter(training_documents()), built.vocab_size)
    assert again.state() == built.state() and again.fingerprint == built.fingerprint
    copy = tokenizer.from_state(json.loads(json.dumps(built.state())))
    assert (copy.name, copy.vocab_size, copy.end_of_text) == (built.name, built.vocab_size, built.end_of_text)
    assert copy.fingerprint == built.fingerprint
    assert copy.encode(SENTENCE) == built.encode(SENTENCE)
    other = tokenizer.build(built.name, ["something else " * 50], built.vocab_size)
    assert (other.fingerprint == built.fingerprint) == (built.name == "bytes")


def test_byte_pairs_are_learned_up_to_the_vocabulary_size(built):
    text = training_documents()[0]
    if built.name == "bytes":
        assert built.vocab_size == 256 and len(built.encode(text)) == len(text.encode())
        return
    assert built.vocab_size == 600
    assert len(built.encode(text)) < len(text.encode()) / 2
    assert tokenizer.build(built.name, ["ab"], 600).vocab_size == 258  # the bytes, "ab" and end of text
    assert tokenizer.build(built.name, [], 257).vocab_size == 257


def test_ids_are_those_of_the_libraries(built):
    ids = built.encode(SENTENCE)
    if built.name == "bpe":
        import tokenizers

        library = tokenizers.Tokenizer.from_str(json.dumps(built.state()["tokenizer"]))
        library.decoder = tokenizers.decoders.ByteLevel()
        assert library.decode(ids) == SENTENCE
        assert library.get_vocab_size() == built.end_of_text
    elif built.name == "rustbpe":
        import rustbpe

        library = rustbpe.Tokenizer()
        library.train_from_iterator(training_documents(), vocab_size=599)
        assert library.encode(SENTENCE) == ids and library.decode(ids) == SENTENCE
    else:
        assert bytes(ids).decode() == SENTENCE


def test_an_error_while_reading_documents_stays_the_error(built):
    def documents():
        yield "some text"
        raise InputError("cannot read the second document")

    if built.name == "bytes":
        assert tokenizer.build("bytes", documents()).encode("ab") == [97, 98], "bytes need no document"
    else:
        with pytest.raises(InputError, match="second document"):
            tokenizer.build(built.name, documents(), 300)


def test_nul_and_half_a_surrogate_pair_are_input_errors(built):
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises(InputError):
            built.encode(text)


@pytest.mark.parametrize("name, vocab_size", [("bytes", 256), ("bpe", 4096)])
def test_the_default_vocabulary_is_kept(name, vocab_size):
    assert tokenizer.check(name) == vocab_size


@pytest.mark.parametrize(
    "name, vocab_size, message",
    [
        ("bytes", 300, "vocabulary of 256, not 300"),
        ("bpe", 256, "at least 257 .*found 256"),
        pytest.param("rustbpe", 0, "at least 257 .*found 0", marks=NEEDS_RUSTBPE),
        ("bytepair", None, "the names are bytes, bpe, rustbpe, or the folder of"),
    ],
)
def test_impossible_tokenizers_are_input_errors(name, vocab_size, message):
    with pytest.raises(InputError, match=message):
        tokenizer.build(name, ["text"], vocab_size)
    with pytest.raises(InputError, match=message):
        token_file.prepare("stdlib", name, vocab_size)


@pytest.mark.parametrize("missing", ["rustbpe", "tiktoken"])
def test_a_missing_package_is_an_input_error_with_the_command(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=f"{missing}.*pip install rustbpe tiktoken"):
        tokenizer.build("rustbpe", ["text"], 300)
    with pytest.raises(InputError, match="pip install"):
        tokenizer.from_state({"name": "rustbpe", "pattern": "", "pieces": []})


def test_bytes_import_no_tokenizer_library(data):
    script = f"""
import sys
from ddp_course.data import corpora, tokenizer, token_file, windows
tokens = token_file.open_tokens(token_file.prepare({data!r}, "bytes"))
assert tokens.tokenizer.encode("a") == [97]
print(sorted({{"tokenizers", "rustbpe", "tiktoken", "matplotlib", "IPython"}} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr


# ---------------------------------------------------------------------------------------------- token files


def prepare(data, name="bytes", vocab_size=None, say=lambda line: None, **options) -> Path:
    """As token_file.prepare, but silent by default."""
    return token_file.prepare(str(data), name, vocab_size, say=say, **options)


def documents_in(ids: np.ndarray, chosen: tokenizer.Tokenizer) -> list[str]:
    ends = np.flatnonzero(ids == chosen.end_of_text)
    assert ends[-1] == len(ids) - 1
    return [chosen.decode(part[part != chosen.end_of_text]) for part in np.split(ids, ends[:-1] + 1)]


def test_a_disk_without_room_for_the_tokens_is_one_sentence(tmp_path, own_cache):
    (tmp_path / "a.txt").write_text("a line of text\n" * 2000)
    message = "cannot write the token files .*set DDP_COURSE_CACHE to another folder"
    with full_disk(10_000), pytest.raises(InputError, match=message):
        prepare(tmp_path / "a.txt")
    assert not list((own_cache / "tokens").iterdir()), "something half-written is left"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_token_files_hold_the_documents(tmp_path, name):
    data = str(numbered_files(tmp_path / "many", 40))
    (tmp_path / "many" / "019.txt").write_text("validation " * 1000)
    lines, vocab_size = [], None if name == "bytes" else 300
    folder = prepare(data, name, vocab_size, lines.append)
    assert folder.parent == tmp_path / "cache" / "tokens" and folder.name.startswith(f"many-{name}-")
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "train.bin", "val.bin"]
    assert any("tokenizing many: 40 documents" in line for line in lines)
    tokens = token_file.open_tokens(folder)
    corpus = corpora.load(data)
    assert tuple(documents_in(ids, tokens.tokenizer) for ids in (tokens.train, tokens.val)) == splits(corpus)
    assert tokens.train.dtype == np.dtype("<u2") and not tokens.train.flags.writeable
    reference = tokenizer.build(name, corpus.documents("train"), vocab_size)
    assert tokens.tokenizer.state() == reference.state()  # the validation split trains no tokenizer


def test_a_warm_start_builds_nothing_and_says_nothing(data):
    folder = prepare(data)
    initial = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    lines = []
    assert prepare(data, "bytes", 256, lines.append) == folder
    assert lines == [] and {path: path.stat().st_mtime_ns for path in folder.iterdir()} == initial
    Path(data, "000.txt").write_text("changed\n" * 30)
    assert prepare(data) != folder


def test_folders_with_equal_names_sizes_and_times_have_their_own_token_files(tmp_path):
    folders = []
    for letter in "ab":
        data = write_files(tmp_path / letter / "text", {"x.txt": letter * 100})
        os.utime(data / "x.txt", ns=(1, 1))
        folders.append(prepare(data))
    first, second = (token_file.open_tokens(folder) for folder in folders)
    assert first.train[0] != second.train[0] and first.fingerprint != second.fingerprint


def test_each_vocabulary_size_has_token_files_of_its_own(data):
    assert prepare(data, "bpe", 300) != prepare(data, "bpe", 301)


def replace_in(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip_a_bit(folder / "train.bin"),
        lambda folder: replace_in(folder / "meta.json", '"tokens": ', '"tokens": 1'),
        lambda folder: os.truncate(folder / "val.bin", 10),
        lambda folder: (folder / "train.bin").unlink(),
        lambda folder: (folder / "meta.json").write_text("{}"),
        lambda folder: (folder / "meta.json").write_text("[]"),
        lambda folder: (folder / "meta.json").unlink(),
    ],
)
def test_damage_is_reported_and_repaired(data, damage):
    folder = prepare(data)
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder)
    lines = []
    assert prepare(data, say=lines.append) == folder
    assert "damaged" in lines[0] and "building them again" in lines[0]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == good
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_resumed_run_reads_its_token_files_though_the_corpus_has_changed(tmp_path, data):
    folder, messages = prepare(data), []
    settings = {"data": data, "tokenizer": "bytes", "vocab_size": None, "token_file": str(folder)}
    numbered_files(tmp_path / "many", 5)
    assert prepare(data, say=messages.append, resumed_settings=settings) == folder and not messages
    assert prepare(data, "bpe", 300, resumed_settings=settings) != folder, "other tokens were asked for"
    assert prepare(f"{data}/000.txt", resumed_settings=settings) != folder, "another corpus was asked for"
    flip_a_bit(folder / "train.bin")
    assert prepare(data, say=messages.append, resumed_settings=settings) != folder
    assert "the token files that this run began with are gone" in messages[0]


@pytest.mark.parametrize("meta", ["[" * 100_000, "7", '{"splits": 7, "dtype": "<u2"}', '{"dtype": "no", "splits": {}}'])
def test_a_malformed_meta_file_is_an_input_error(tmp_path, meta):
    write_files(tmp_path / "tokens", {"meta.json": meta, "train.bin": "ab", "val.bin": "ab"})
    with pytest.raises(InputError, match="no usable token files"):
        token_file.open_tokens(tmp_path / "tokens")


@pytest.mark.parametrize("damaged", [False, True])
def test_the_slower_of_two_builders_takes_the_files_of_the_faster(data, monkeypatch, damaged):
    if damaged:
        flip_a_bit(prepare(data) / "train.bin")
    build, faster = token_file._build, []

    def overtaken(*arguments):
        build(*arguments)
        monkeypatch.setattr(token_file, "_build", build)
        faster.append(prepare(data))  # another process does all of it between the last write and the rename

    monkeypatch.setattr(token_file, "_build", overtaken)
    assert [prepare(data)] == faster
    assert token_file._damage(faster[0]) is None
    assert list(faster[0].parent.iterdir()) == faster


def test_a_build_that_fails_leaves_nothing(data, own_cache, monkeypatch):
    monkeypatch.setattr(tokenizer.ByteTokenizer, "encode", lambda self, text: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(data)
    assert not list((own_cache / "tokens").iterdir())


def test_an_unfinished_build_is_removed_after_a_day(data, own_cache):
    for name, age in ((".x.building-old", 2 * 86_400), (".x.building-new", 60)):
        (own_cache / "tokens" / name).mkdir(parents=True)
        os.utime(own_cache / "tokens" / name, (time.time() - age,) * 2)
    slow = own_cache / "tokens" / ".x.building-slow"  # for two days the same file grows
    slow.mkdir()
    (slow / "train.bin").write_bytes(b"so far")
    os.utime(slow, (time.time() - 2 * 86_400,) * 2)
    folder = prepare(data)
    assert {path.name for path in (own_cache / "tokens").iterdir()} == {".x.building-new", slow.name, folder.name}


def test_memory_does_not_grow_with_the_corpus(tmp_path, data, monkeypatch):
    monkeypatch.setattr(text_files, "CHUNK", 1 << 16)
    write_files(tmp_path, {"long.txt": "".join(f"line {n}\n" for n in range(700_000))})
    size = (tmp_path / "long.txt").stat().st_size
    prepare(data)  # imports and caches
    tracemalloc.start()
    try:
        token_file.open_tokens(prepare(tmp_path / "long.txt"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 8e6 and peak < size / 2


def test_a_large_vocabulary_is_written_with_four_bytes(data, monkeypatch):
    class Wide(tokenizer.ByteTokenizer):
        vocab_size, end_of_text = 65_536, 65_535

    monkeypatch.setattr(tokenizer, "build", lambda *arguments: Wide({"name": "bytes"}))
    tokens = token_file.open_tokens(prepare(data))
    assert tokens.train.dtype == np.dtype("<u4") and tokens.train[-1] == 65_535
    assert (tokens.folder / "train.bin").stat().st_size == 4 * len(tokens.train)


@pytest.mark.parametrize("name", TOKENIZERS[1:])
def test_the_library_gets_no_larger_vocabulary_than_the_text_can_have(data, name):
    """It takes memory for all of them at once, and aborts the process if there is not enough."""
    assert 257 < token_file.open_tokens(prepare(data, name, 10**12)).tokenizer.vocab_size < 10_000


def test_a_large_corpus_trains_the_tokenizer_on_every_kth_document(tmp_path, monkeypatch):
    data = str(numbered_files(tmp_path / "many", 40))
    corpus = corpora.load(data)
    monkeypatch.setattr(token_file, "TRAINING_BYTES", sum(file.size for file in corpus.text_files) // 4)
    chosen, build = [], tokenizer.build

    def watched(name, documents, vocab_size):
        chosen.extend(documents)
        return build(name, chosen, vocab_size)

    monkeypatch.setattr(tokenizer, "build", watched)
    prepare(data)
    assert chosen == list(corpus.documents("train"))[::4]


def test_missing_token_files_an_unusable_cache_and_a_short_corpus_are_input_errors(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="prepare them on this machine"):
        token_file.open_tokens(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="too short to have validation text"):
        prepare(tmp_path / "file")
    monkeypatch.setenv("DDP_COURSE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set DDP_COURSE_CACHE"):
        token_file.prepare("stdlib", "bytes")


# -------------------------------------------------------------------------------------------------- windows


def test_every_valid_window_can_be_drawn_and_no_other():
    tokens, context = 9, 4
    starts = np.concatenate([windows.window_starts(0, step, 8, tokens, context) for step in range(50)])
    assert set(starts) == {0, 1, 2, 3, 4}  # inputs 4..7 and targets 5..8 are the last that fit
    assert set(windows.window_starts(0, 0, 50, context + 1, context)) == {0}
    counts = np.bincount(windows.window_starts(1, 2, 50_000, tokens, context))
    assert abs(counts / 10_000 - 1).max() < 0.05


@pytest.mark.parametrize("tokens", [0, 4, 120, 256])
def test_a_corpus_shorter_than_a_window_is_an_input_error(tokens):
    message = f"context 256 needs at least 257 training tokens, the corpus has {tokens}: "
    with pytest.raises(InputError, match=message):
        windows.window_starts(0, 0, 1, tokens, 256)
    with pytest.raises(InputError, match=message):
        next(micro_batches_of(np.zeros(tokens, np.uint16), context=256))


def test_a_window_depends_on_seed_step_and_its_number_alone():
    whole = windows.window_starts(7, 3, 1000, 10**6, 256)
    for count in (0, 1, 2, 63, 999):
        assert (windows.window_starts(7, 3, count, 10**6, 256) == whole[:count]).all()
    drawn = {}
    for seed in range(30):
        for step in range(30):
            drawn[seed, step] = tuple(windows.window_starts(seed, step, 8, 2**62, 256))
    assert len(set(drawn.values())) == 900  # seed + step would give 59
    numbers = Counter(start for starts in drawn.values() for start in starts)
    assert max(numbers.values()) == 1  # nor is a stream another one, shifted


def test_the_data_order_is_the_same_on_every_machine_and_in_every_version():
    # The windows follow from a checkpoint's step: with other windows every older run would resume on other data.
    assert windows.window_starts(1337, 10, 4, 3_000_000, 256).tolist() == [83595, 2201727, 1708724, 2119176]
    assert windows.window_starts(2**64 - 1, 2**40, 2, 2**33, 256).tolist() == [6778471804, 6369925023]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_an_input_error(seed):
    with pytest.raises(InputError, match="from 0 to 2\\*\\*64 - 1"):
        windows.window_starts(seed, 0, 1, 1000, 8)


def micro_batches_of(tokens, **options):
    defaults = {"context": 8, "micro_batch_size": 2, "gradient_accumulation_steps": 4, "rank": 0, "world_size": 1}
    return windows.micro_batches(tokens, seed=5, step=11, **defaults | options)


def test_micro_batches_have_their_shape_and_targets_are_one_token_later():
    tokens = np.arange(1000, dtype=np.uint16)
    batches = list(micro_batches_of(tokens))
    assert len(batches) == 4
    for inputs, targets in batches:
        assert inputs.shape == targets.shape == (2, 8)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.is_contiguous() and targets.is_contiguous()
        assert (inputs[:, 1:] == inputs[:, :-1] + 1).all() and (targets == inputs + 1).all()


@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_all_world_sizes_share_one_global_batch_in_one_order(micro_batch_size, world_size):
    tokens = np.arange(5000, dtype=np.uint16)
    sizes = {"micro_batch_size": micro_batch_size, "world_size": world_size}
    sizes["gradient_accumulation_steps"] = 16 // (micro_batch_size * world_size)
    first_tokens = {}
    for rank in range(world_size):
        for m, (inputs, _) in enumerate(micro_batches_of(tokens, rank=rank, **sizes)):
            for b, row in enumerate(inputs):
                first_tokens[(m * world_size + rank) * micro_batch_size + b] = row[0].item()
    expected = windows.window_starts(5, 11, 16, len(tokens), 8)
    assert first_tokens == dict(enumerate(expected.tolist()))


def validation_of(tokens, world_size, **options):
    return [
        list(windows.validation_batches(tokens, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("count", [2, 8, 9, 10, 16, 17, 100])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_token_but_the_first_is_validated_once(count, world_size):
    tokens = np.arange(count, dtype=np.uint16)
    validated, shares = Counter(), validation_of(tokens, world_size, context=8, batch_size=3)
    for batches in shares:
        for inputs, targets in batches:
            assert inputs.shape == targets.shape and inputs.shape[1] == 8 and 1 <= len(inputs) <= 3
            assert inputs.dtype == targets.dtype == torch.int64
            assert ((0 <= inputs) & (inputs < count)).all()  # also where it is padded
            valid = targets != windows.IGNORED
            assert (targets[valid] == inputs[valid] + 1).all()
            validated.update(targets[valid].tolist())
    assert validated == Counter(range(1, count))
    counts = [sum(len(inputs) for inputs, _ in batches) for batches in shares]
    assert max(counts) - min(counts) <= 1  # a rank may have none
    assert windows.IGNORED == torch.nn.CrossEntropyLoss().ignore_index, "padding does not count in a loss"


@pytest.mark.parametrize("max_windows", [1, 7, 99, 100, 1000])
def test_max_windows_are_spread_evenly_and_the_same_for_all_world_sizes(max_windows):
    tokens, options = np.arange(801, dtype=np.uint16), {"context": 8, "batch_size": 4}  # 100 windows
    single, *others = (
        sorted(
            row[0].item()
            for batches in validation_of(tokens, world_size, max_windows=max_windows, **options)
            for inputs, _ in batches
            for row in inputs
        )
        for world_size in (1, 2, 3)
    )
    assert others == [single] * 2 and len(set(single)) == len(single) == min(max_windows, 100)
    gaps = np.diff([*single, 800]) // 8
    assert gaps.max() - gaps.min() <= 1 and all(start % 8 == 0 for start in single)


@pytest.mark.parametrize(
    "count, max_windows, message", [(0, None, "2 tokens"), (1, None, "2 tokens"), (9, 0, "1 window")]
)
def test_validation_of_nothing_is_an_input_error(count, max_windows, message):
    with pytest.raises(InputError, match=message):
        validation_of(np.arange(count), 1, context=8, batch_size=1, max_windows=max_windows)
