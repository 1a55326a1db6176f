"""An argument parser for commands and trainers: one sentence for what is wrong, and no flag twice."""

import argparse
from typing import Any, NoReturn

from ddp_course.base.errors import InputError


class StoreOnce(argparse.Action):
    """Store a flag's value, and refuse the flag if it has one already: argparse itself lets the last win in silence."""

    def __call__(self, parser: "Parser", namespace: argparse.Namespace, value: Any, flag: str | None = None) -> None:
        if flag and self.dest in parser.flags_read:
            first = parser.flags_read[self.dest]
            raise argparse.ArgumentError(None, f"{flag} was given twice: {first} and {value}; give it once")
        parser.flags_read[self.dest] = value
        setattr(namespace, self.dest, value)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises InputError, with one sentence. A flag may be neither abbreviated nor repeated."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.register("action", None, StoreOnce)
        self.flags_read: dict[str, object] = {}  # here, too: 3.14's parse_intermixed_args calls no parse_known_args

    def parse_known_args(self, *arguments: Any, **more: Any) -> Any:
        self.flags_read = {}
        return super().parse_known_args(*arguments, **more)

    def error(self, message: str) -> NoReturn:
        raise InputError(message)
