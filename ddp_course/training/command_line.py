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
from ddp_course.distributed.replica_check import RandomStatesEqual, ReplicasDiffer
from ddp_course.distributed.sync import from_rank_0
from ddp_course.training.memory import is_out_of_memory
from ddp_course.training.settings import flag

Config = TypeVar("Config")
USAGE_ERROR, FAILURE = 2, 1
UNUSABLE_PATH = errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES  # what even asking whether a file is there can raise
LONGEST_FILE = 1 << 20  # characters of a file of settings
# Words in the errors of gloo and NCCL when another rank has ended: that one has printed why, or was killed.
PEER_GONE = "Connection closed by peer", "Connection reset by peer", "ncclRemoteError"


def run(main: Callable[[Config], int | None], presets: Mapping[str, Config], on_rank_0: bool = False) -> None:
    """Run a launchable: read the flags on top of a preset, call `main(config)`, end this rank cleanly.

    on_rank_0: that rank reads them and sends the result to the others, as `parse_on_rank_0` does.
    Exit code: what `main` returned (0 for None), 2 for a wrong flag, 1 for everything else. An InputError is printed by
    one rank as one line, and so is what a check of the replicas has found. Any other exception keeps its traceback on
    the rank where it happened, and that rank ends at once, without taking the process group down first: its peers may
    be inside a collective, and whoever waits for them can hang. The kernel closes our sockets, so they notice within
    milliseconds, and say no more than a line about it, if a launcher leaves them the time.
    """
    try:
        config = parse_on_rank_0(presets) if on_rank_0 else parse(presets)
    except InputError as error:
        _speak_and_leave(f"error: {error}", USAGE_ERROR)
    try:
        code = main(config)
    except (InputError, ReplicasDiffer, RandomStatesEqual) as error:  # all ranks have raised it, with one text
        torchrun.put_into_report(str(error))
        _speak_and_leave(f"error: {error}", FAILURE)
    except Exception as error:
        if is_out_of_memory(error):
            sentence = f"not enough memory: {str(error).splitlines()[0] if str(error) else 'the system gave none'}"
            torchrun.put_into_report(sentence)
            _speak_and_leave(f"error: {sentence}; choose smaller sizes", FAILURE)
        if any(words in str(error) for words in PEER_GONE):
            _speak_and_leave(
                f"error: rank {_rank()} ends: it has lost the connection to another rank, which has ended "
                f"({str(error).splitlines()[0]})",
                FAILURE,
            )
        if isinstance(error, OSError) and error.filename and error.errno in UNUSABLE_PATH:  # not a socket's
            sentence = f"cannot use the path {str(error.filename)[:80]!r}: {error.strerror}"
            torchrun.put_into_report(sentence)
            _speak_and_leave(f"error: {sentence}", FAILURE)
        get_error_handler().record_exception(error)
        traceback.print_exc()
        _leave(FAILURE)
    if problem := getattr(sys.stdout, "problem", ""):  # see process.note_unwritable_output
        _speak_and_leave(f"error: cannot write to the standard output: {problem}", FAILURE)
    process_group.stop()
    if code:
        sys.exit(code)


def parse(presets: Mapping[str, Config], arguments: list[str] | None = None) -> Config:
    """A config from `--preset NAME` and the flags that change it. The first preset is the default.

    A preset is an instance of the config's dataclass, whose field docstrings are the `--help`.
    Raises InputError for a flag, a value or a preset that does not exist, for a flag that is given twice, and for
    whatever the dataclass's own `__post_init__` refuses with a ValueError.

    Where a flag may stand, so may `key=value`, and `@FILE` for a file with one of these per line. The command
    line wins over a file.
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


def parse_on_rank_0(presets: Mapping[str, Config], arguments: list[str] | None = None) -> Config:
    """The same, read by rank 0 and sent to the others, which need no file of settings of their own (collective).

    An InputError of rank 0 is raised on every rank. Ranks communicate once they have a device and a time limit,
    so each reads these two for itself: they have to stand on the command line.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(arguments):
        return parse(presets, arguments)
    default = next(iter(presets.values()))
    own = _read((word for word in arguments if not word.startswith("@")), default)
    device, seconds = own.get("device", default.device), own.get("timeout_seconds", default.timeout_seconds)
    makes_sense = 0 < seconds < float("inf")  # if not, rank 0 will say so
    world = process_group.start(seconds, device) if makes_sense else process_group.start()
    config = from_rank_0(world, lambda: parse(presets, arguments))
    if (config.device, config.timeout_seconds) != (device, seconds):
        raise InputError(
            "--device and --timeout-seconds must stand on the command line, not in a file of settings: "
            "each rank needs them before it can hear from rank 0"
        )
    return config


def _read(words: Iterable[str], preset: object) -> dict[str, object]:
    """The settings that these words name, each once, with their values."""
    return vars(_parser(preset).parse_args(list(_flags(words, preset))))


def _parser(preset: object, texts: Mapping[str, str] | None = None) -> Parser:
    """A parser with a flag for each setting. texts: what --help says about them, besides the values of `preset`."""
    parser = Parser(
        description=type(preset).__doc__,
        epilog="KEY=VALUE may stand for --KEY VALUE, and @FILE for a file with one of these per line. Give each once; "
        "what stands on the command line wins over a file.",
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    for name, hint in get_type_hints(type(preset)).items():
        kinds, text = get_args(hint) or (hint,), f"{texts[name]} ({getattr(preset, name)})" if texts else ""
        if get_origin(hint) is Literal:
            how = {"choices": kinds}
        else:
            how = {"type": partial(_value, name, kinds), "metavar": kinds[0].__name__.upper()}
        if hint is bool:
            how |= {"nargs": "?", "const": True}
        parser.add_argument(flag(name), help=text.replace("%", "%%"), **how)
    return parser


def _docstrings(config_type: type) -> dict[str, str]:
    """The docstring below each field, in the class or else in the next base that has one."""
    texts = {}
    for base in reversed(config_type.__mro__[:-1]):
        [definition] = ast.parse(inspect.getsource(base)).body
        for field, text in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(text.value.value.split())
    return texts


def _value(name: str, kinds: tuple[type, ...], text: str) -> object:
    """Convert a word into a value of the first of these types; or into None, if that has one of them."""
    kind, optional = kinds[0], NoneType in kinds
    if optional and text == "None":
        return None
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        expected = {int: "a whole number", float: "a number", bool: "true or false"}[kind] + " or None" * optional
        raise argparse.ArgumentError(None, f"{flag(name)} must be {expected}, not {text[:40]!r}") from None


def _flags(words: Iterable[str], preset: object) -> Iterator[str]:
    """`--key=value` for each `key=value` whose key is a setting."""
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
    try:
        with open(file, encoding="utf-8") as stream:
            lines = stream.read(LONGEST_FILE + 1)
        if len(lines) > LONGEST_FILE:
            raise InputError(f"cannot read the settings in {file[:200]}: there are more than {LONGEST_FILE} characters")
        lines = lines.splitlines()
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the name
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the settings in {file}: {reason}") from None
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            if "=" not in line:
                raise InputError(f"{line!r} in {file} is no setting; write key=value")
            yield line


def _speak_and_leave(message: str, code: int) -> NoReturn:
    """Print `message` as one line from one rank only and end the process.

    Rank 0 speaks and leaves; torchrun then ends the others, who are silent until then. If rank 0 has no such
    trouble the wait runs out and the rank that has it speaks for itself.
    """
    if _rank() > 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(5 + 0.5 * min(_rank(), 8))  # on a busy machine rank 0 can be seconds later
    print(in_one_line(message), file=sys.stderr, flush=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process without Python's and C++'s tear-down, in which a broken process group can hang or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _rank() -> int:
    """Who speaks; what is wrong with RANK is said by `process_group.start`."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
