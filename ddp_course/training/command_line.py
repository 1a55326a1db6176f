"""From the command line to `main(config)` and out again: one clear message from one rank, and a clean end."""

import argparse
import ast
import errno
import inspect
import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.parser import Parser
from ddp_course.distributed import process_group, torchrun
from ddp_course.distributed.rendezvous import whole_number
from ddp_course.distributed.replica_check import RandomStatesEqual, ReplicasDiffer
from ddp_course.distributed.sync import from_rank_0
from ddp_course.training.memory import is_out_of_memory
from ddp_course.training.settings import flag

Config = TypeVar("Config")
USAGE_ERROR, FAILURE = 2, 1
UNUSABLE_PATH = errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES  # even a test for a file raises these
LONGEST_FILE = 1 << 20  # characters of a file of settings
# Words in the errors of gloo and NCCL when another rank has ended, which has printed why, or was killed.
PEER_GONE = "Connection closed by peer", "Connection reset by peer", "ncclRemoteError"


def run(main: Callable[[Config], int | None], presets: Mapping[str, Config], on_rank_0: bool = False) -> None:
    """Run a launchable: read the flags on top of a preset, call `main(config)`, end this rank cleanly.

    on_rank_0: rank 0 reads the flags and sends the result to the others, as `parse_on_rank_0` does.
    Exit code: what `main` returned (0 for None), 2 for a wrong flag, 1 for everything else.
    One rank prints an InputError, ReplicasDiffer or RandomStatesEqual as one line. Any other exception keeps its
    traceback on the rank where it happened. That rank ends at once, without destroying the process group: its peers
    may be inside a collective, and waiting for them could hang. The kernel closes its sockets, so the peers notice
    within milliseconds; each prints one line and ends, unless the launcher ends it first.
    """
    try:
        config = parse_on_rank_0(presets) if on_rank_0 else parse(presets)
    except InputError as error:
        _print_and_exit(f"error: {error}", USAGE_ERROR)
    try:
        code = main(config)
    except Exception as error:
        if sentence := _sentence(error):
            torchrun.put_into_report(sentence)
            _print_and_exit(f"error: {sentence}", FAILURE)
        if any(words in str(error) for words in PEER_GONE):
            _print_and_exit(
                f"error: rank {_rank()} ends: it has lost the connection to another rank, which has ended "
                f"({str(error).splitlines()[0]})",
                FAILURE,
            )
        get_error_handler().record_exception(error)
        traceback.print_exc()
        _exit(FAILURE)
    if problem := getattr(sys.stdout, "problem", ""):  # see process.note_unwritable_output
        _print_and_exit(f"error: cannot write to the standard output: {problem}", FAILURE)
    process_group.stop()
    if code:
        sys.exit(code)


def parse(presets: Mapping[str, Config], arguments: list[str] | None = None) -> Config:
    """A config from `--preset NAME` and the flags that change it. The first preset is the default.

    A preset is an instance of the config's dataclass, whose field docstrings are the `--help`.
    Raises InputError for a flag, a value or a preset that does not exist, for a flag that is given twice, and for
    values that the dataclass's own `__post_init__` refuses with a ValueError.

    `key=value` may stand for a flag, and `@FILE` for a file with one of these per line. The command line wins over a
    file.
    """
    words = sys.argv[1:] if arguments is None else arguments
    default = next(iter(presets.values()))
    lines = [line for word in words if word.startswith("@") for line in _lines(word[1:])]
    settings = _read(lines, default) | _read((word for word in words if not word.startswith("@")), default)
    preset = presets.get(settings.get("preset"), default)
    if settings.pop("help", False):
        if _rank() == 0:
            _parser(preset, _docstrings(type(preset))).print_help()
        sys.exit()
    try:
        return replace(preset, **settings)
    except ValueError as error:
        raise InputError(str(error)) from None


def parse_on_rank_0(presets: Mapping[str, Config]) -> Config:
    """Like `parse`, but on rank 0, which sends the config to the others: they need no file of settings (collective).

    An InputError of rank 0 is raised on every rank. The ranks need the device and the timeout before they can
    communicate, so each reads these two from its own command line: they cannot come from a file.
    """
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        return parse(presets)
    default = next(iter(presets.values()))
    flags = _read((word for word in words if not word.startswith("@")), default)
    device = flags.get("device", default.device)
    seconds = flags.get("timeout_seconds", default.timeout_seconds)
    is_valid = 0 < seconds < float("inf")  # if not, rank 0 raises InputError in `parse`
    world = process_group.start(seconds, device) if is_valid else process_group.start()
    config = from_rank_0(world, lambda: parse(presets))
    if (config.device, config.timeout_seconds) != (device, seconds):
        raise InputError(
            "--device and --timeout-seconds must stand on the command line, not in a file of settings: "
            "each rank needs them before it can hear from rank 0"
        )
    return config


def _read(words: Iterable[str], preset: object) -> dict[str, object]:
    """The settings that are given in `words`, and their values. Raises InputError for one that is given twice."""
    return vars(_parser(preset).parse_args(list(_flags(words, preset))))


def _parser(preset: object, texts: Mapping[str, str] | None = None) -> Parser:
    """A parser with a flag for each setting. texts: the help for each, to which the value in `preset` is added."""
    parser = Parser(
        description=type(preset).__doc__,
        epilog="KEY=VALUE may stand for --KEY VALUE, and @FILE for a file with one of these per line. Give each once; "
        "the command line wins over a file.",
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    for name, hint in get_type_hints(type(preset)).items():
        kinds = get_args(hint) or (hint,)
        text = f"{texts[name]} ({getattr(preset, name)})" if texts else ""
        if get_origin(hint) is Literal:
            options = {"choices": kinds}
        else:
            options = {"type": partial(_value, name, kinds), "metavar": kinds[0].__name__.upper()}
        if hint is bool:
            options |= {"nargs": "?", "const": True}
        parser.add_argument(flag(name), help=text.replace("%", "%%"), **options)
    return parser


def _docstrings(config_type: type) -> dict[str, str]:
    """{field: docstring below it}, from the class or else from the next base that has one."""
    texts = {}
    for base in reversed(config_type.__mro__[:-1]):
        [definition] = ast.parse(inspect.getsource(base)).body
        for field, text in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(text.value.value.split())
    return texts


def _value(name: str, kinds: tuple[type, ...], text: str) -> object:
    """Convert a word to the first of these types, or "None" to None if NoneType is one of them."""
    kind, optional = kinds[0], NoneType in kinds
    if optional and text == "None":
        return None
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        expected = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        expected += " or None" if optional else ""
        raise argparse.ArgumentError(None, f"{flag(name)} must be {expected}, not {text[:40]!r}") from None


def _flags(words: Iterable[str], preset: object) -> Iterator[str]:
    """The words, with each `key=value` whose key is a setting as `--key=value`. Raises InputError for --local-rank."""
    for word in words:
        key, equals, value = word.partition("=")
        if key in ("--local-rank", "--local_rank"):
            raise InputError(
                "--local-rank comes from torch.distributed.launch, which is deprecated; start the job "
                "with torchrun --nproc-per-node=N, which gives each process its rank"
            )
        name = key.removeprefix("--").replace("-", "_")
        is_setting = hasattr(preset, name) and (equals or key.startswith("--"))
        yield f"{flag(name)}{equals}{value}" if is_setting else word


def _lines(file: str) -> Iterator[str]:
    """The lines `key=value` of a file of settings. Raises InputError if it cannot be read or has another line."""
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read(LONGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the name
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the settings in {file}: {reason}") from None
    if len(text) > LONGEST_FILE:
        raise InputError(f"cannot read the settings in {file[:200]}: there are more than {LONGEST_FILE} characters")
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            if "=" not in line:
                raise InputError(f"{line!r} in {file} is no setting; write key=value")
            yield line


def _sentence(error: Exception) -> str | None:
    """The message for an error of the user's input or of this machine; None for an error in the program."""
    if isinstance(error, InputError | ReplicasDiffer | RandomStatesEqual):  # all ranks have raised it, with one text
        return str(error)
    if is_out_of_memory(error):
        reason = str(error).splitlines()[0] if str(error) else "the system gave none"
        return f"not enough memory: {reason}; choose smaller sizes"
    if isinstance(error, OSError) and error.filename and error.errno in UNUSABLE_PATH:  # a socket's has no filename
        return f"cannot use the path {str(error.filename)[:80]!r}: {error.strerror}"
    return None


def _print_and_exit(message: str, code: int) -> NoReturn:
    """Print `message` as one line, from one rank only, and end the process.

    Rank 0 prints it and exits, and torchrun then ends the other ranks, which wait for that. If rank 0 did not have the
    error, their wait ends after some seconds, and each rank that has it prints it.
    """
    if _rank() > 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(5 + 0.5 * min(_rank(), 8))  # on a busy machine rank 0 can be seconds later
    print(in_one_line(message), file=sys.stderr, flush=True)
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process without Python's and C++'s tear-down, in which a broken process group can hang or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _rank() -> int:
    """RANK, or 0 if it is missing or invalid: `process_group.start` raises an error for that."""
    return whole_number(os.environ.get("RANK", "")) or 0
