"""Tokenizers: bytes, byte-pair encoding by Hugging Face `tokenizers` or `rustbpe`, or an existing tokenizer.

The first three are lossless: decode(encode(text)) == text for every text without NUL. End of text has an id of its
own that no text encodes to. The libraries are imported when first needed, so a run on bytes loads none of them.
"""

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.base.json_file import read_object

DEFAULT_VOCAB_SIZE = {"bytes": 256, "bpe": 4096, "rustbpe": 4096}
SMALLEST_VOCAB_SIZE = 257  # of a byte-pair encoding: the 256 bytes and end of text
MAX_CHARACTERS = 100_000  # per call of a library: tiktoken crashes on a million spaces in a row


class Tokenizer:
    """The interface of all tokenizers. Make one with `build`, `from_state` or `existing`."""

    name: str

    def __init__(self, state: dict):
        self._state = state

    @cached_property
    def _pieces(self) -> list[bytes]:
        """The bytes of each id, without end of text."""
        raise NotImplementedError

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        """The number of ids, end of text included: the number of rows of a model's embedding."""
        return len(self._pieces) + 1

    @property
    def end_of_text(self) -> int:
        """The id that is added after every document."""
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Encode a text as token ids. Raises InputError if it holds NUL or half a surrogate pair."""
        if "\0" in text:
            raise InputError("the text holds a NUL character, which may not occur in text: remove it")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not valid Unicode ({error}): pass text read as UTF-8") from error
        return [token for part in _parts(text) for token in self._encode(part)]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text. Never raises: an unknown id, or bytes that are not UTF-8, become U+FFFD."""
        pieces, end, unknown = self._pieces, self.end_of_text, "\ufffd".encode()
        parts = []
        for token in map(int, ids):  # int: the ids may be NumPy's or torch's
            if token == end:
                parts.append(b"<|endoftext|>")
            else:
                parts.append(pieces[token] if 0 <= token < len(pieces) else unknown)
        return b"".join(parts).decode("utf-8", errors="replace")

    def state(self) -> dict:
        """The state for `from_state`, in plain JSON types, for a checkpoint or a file."""
        return dict(self._state)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the state, 16 hex digits: two tokenizers with the same hash encode alike."""
        return hashlib.sha256(json.dumps(self._state, sort_keys=True).encode()).hexdigest()[:16]


class ByteTokenizer(Tokenizer):
    """One id per byte. Byte 0, which text may not hold, is end of text, so 256 ids suffice."""

    name = "bytes"
    vocab_size = 256
    end_of_text = 0

    @cached_property
    def _pieces(self) -> list[bytes]:
        return [bytes([byte]) for byte in range(256)]

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        return lambda text: list(text.encode("utf-8"))


class BytePairTokenizer(Tokenizer):
    """Byte-level byte-pair encoding by Hugging Face `tokenizers`, with GPT-2's pattern to split words.

    End of text is not in the library's vocabulary: otherwise the letters "<|endoftext|>" in a document would become it.
    """

    name = "bpe"

    @cached_property
    def _pieces(self) -> list[bytes]:
        # The library writes each byte as one printable character: as itself, or else as the next one from U+0100 on.
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        unprintable = [byte for byte in range(256) if byte not in set(printable)]
        byte_of = {chr(byte): byte for byte in printable}
        byte_of |= {chr(256 + index): byte for index, byte in enumerate(unprintable)}
        vocabulary = self._state["tokenizer"]["model"]["vocab"]
        return [bytes(byte_of[c] for c in word) for word in sorted(vocabulary, key=vocabulary.__getitem__)]

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        library = _import_tokenizers().Tokenizer.from_str(json.dumps(self._state["tokenizer"]))
        return lambda text: library.encode_batch_fast([text])[0].ids  # the only call that computes no offsets


class RustBytePairTokenizer(Tokenizer):
    """Byte-level byte-pair encoding by `rustbpe` and `tiktoken`, with GPT-4's pattern to split words."""

    name = "rustbpe"

    @cached_property
    def _pieces(self) -> list[bytes]:
        return [bytes.fromhex(piece) for piece in self._state["pieces"]]

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        import tiktoken

        ranks = {piece: rank for rank, piece in enumerate(self._pieces)}
        pattern = self._state["pattern"]
        library = tiktoken.Encoding("rustbpe", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        return library.encode_ordinary


class ExistingTokenizer(Tokenizer):
    """Any tokenizer of Hugging Face `tokenizers`, from its tokenizer.json. `existing` reads it from a folder.

    It may be lossy. A special token's letters in a text are encoded as ordinary text.
    """

    name = "huggingface"

    @cached_property
    def _library(self):
        library = _import_tokenizers().Tokenizer.from_str(json.dumps(self._state["tokenizer"]))
        library.no_padding()
        library.no_truncation()
        library.encode_special_tokens = True
        return library

    @property
    def vocab_size(self) -> int:
        return max(self._library.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def end_of_text(self) -> int:
        return self._state["end_of_text"]

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        return lambda text: self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Iterable[int]) -> str:
        known = [token for token in map(int, ids) if self._library.id_to_token(token) is not None]
        return self._library.decode(known, skip_special_tokens=False)


BUILT = {kind.name: kind for kind in (ByteTokenizer, BytePairTokenizer, RustBytePairTokenizer)}
KINDS = BUILT | {ExistingTokenizer.name: ExistingTokenizer}
COMMON_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")  # tried if tokenizer_config.json names none


def check(name: str, vocab_size: int | None = None) -> int:
    """Check the arguments of `build`, and return the vocabulary size: `vocab_size`, or the default of this tokenizer.

    Raises InputError for an unknown name, a size the tokenizer cannot have, or a missing package.
    """
    if name not in BUILT:
        raise InputError(f'no tokenizer "{name}": the names are {", ".join(BUILT)}, or the folder of an existing one')
    if name == "rustbpe":
        missing = [package for package in ("rustbpe", "tiktoken") if not _installed(package)]
        if missing:
            raise InputError(
                f'the tokenizer "rustbpe" needs the package {" and ".join(missing)}, which is not installed: '
                f"pip install rustbpe tiktoken"
            )
    if vocab_size is None:
        return DEFAULT_VOCAB_SIZE[name]
    if name == "bytes" and vocab_size != 256:
        raise InputError(f'the tokenizer "bytes" has a vocabulary of 256, not {vocab_size}: leave it out')
    if name != "bytes" and vocab_size < SMALLEST_VOCAB_SIZE:
        raise InputError(
            f'the tokenizer "{name}" needs a vocabulary of at least {SMALLEST_VOCAB_SIZE} '
            f"(256 bytes and end of text), found {vocab_size}"
        )
    return vocab_size


def build(name: str, documents: Iterable[str], vocab_size: int | None = None) -> Tokenizer:
    """Train the tokenizer `name` ("bytes", "bpe" or "rustbpe") on documents, read once and not kept.

    The same documents give the same tokenizer. `vocab_size` includes end of text; text with too few pairs to merge
    gives a smaller vocabulary. The default is 4096; bytes always have 256. Raises InputError as `check` does.
    """
    vocab_size = check(name, vocab_size)
    texts = (part for document in documents for part in _parts(document))
    if name == "bytes":
        return ByteTokenizer({"name": name})
    if name == "bpe":
        tokenizers = _import_tokenizers()
        words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        library = tokenizers.Tokenizer(tokenizers.models.BPE())
        library.pre_tokenizer = words
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size - 1, initial_alphabet=sorted(words.alphabet()), show_progress=False
        )
        library.train_from_iterator(texts, trainer)
        return BytePairTokenizer({"name": name, "tokenizer": json.loads(library.to_str())})
    import rustbpe

    library = rustbpe.Tokenizer()
    library.train_from_iterator(texts, vocab_size=vocab_size - 1)
    ranks = sorted(library.get_mergeable_ranks(), key=lambda pair: pair[1])
    pieces = [bytes(piece).hex() for piece, _ in ranks]
    return RustBytePairTokenizer({"name": name, "pattern": library.get_pattern(), "pieces": pieces})


def from_state(state: dict) -> Tokenizer:
    """Restore a tokenizer from its `state()`. Raises InputError for an unknown name or a missing package."""
    if state["name"] not in KINDS:
        raise InputError(f'no tokenizer "{state["name"]}": the names are {", ".join(KINDS)}')
    if state["name"] in BUILT:
        check(state["name"])
    return KINDS[state["name"]](state)


def existing(path: str | Path) -> ExistingTokenizer:
    """Read a Hugging Face tokenizer from its folder or file: tokenizer.json, and tokenizer_config.json if it exists.

    Its end of text is the eos_token in tokenizer_config.json, else the first of COMMON_ENDS in its vocabulary.
    Raises InputError if there is no such tokenizer, if it cannot be read, or if it has no end of text.
    """
    path = Path(path).expanduser()
    try:
        path.stat()  # Path.exists hides a name that is too long, and a folder that may not be read, from Python 3.14 on
    except (FileNotFoundError, NotADirectoryError):
        check(str(path))  # raises, because no tokenizer has this name either
    file = path / "tokenizer.json" if path.is_dir() else path
    state = read_object(file)
    try:
        library = _import_tokenizers().Tokenizer.from_str(json.dumps(state))
    except Exception as error:  # the library raises bare Exceptions
        raise InputError(f"{file} is not a tokenizer of Hugging Face's: {error}") from None
    settings = file.with_name("tokenizer_config.json")
    eos_token = read_object(settings).get("eos_token") if settings.exists() else None
    eos_token = eos_token.get("content") if isinstance(eos_token, dict) else eos_token
    for end in [eos_token] if eos_token else COMMON_ENDS:
        if (number := library.token_to_id(end)) is not None:
            return ExistingTokenizer({"name": ExistingTokenizer.name, "tokenizer": state, "end_of_text": number})
    missing = eos_token or ", ".join(COMMON_ENDS)
    raise InputError(f"the tokenizer {file} has no token that ends a text: it does not know {missing}")


def _parts(text: str) -> Iterator[str]:
    """A text in parts of up to MAX_CHARACTERS."""
    return (text[start : start + MAX_CHARACTERS] for start in range(0, len(text), MAX_CHARACTERS))


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # sys.modules holds a module without a spec
        return False


def _import_tokenizers():
    # Its thread pool does not survive a fork, and the library warns whenever a process forks after using it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers
