"""Pages that compute: the package's own Python runs in the reader's browser.

The build brings Pyodide, pinned, into _static/, and beside it a zip of the modules; the forms are made of the commands'
own flags. A page fetches nothing from elsewhere.
"""

import argparse
import html
from pathlib import Path

import in_browser
from packing import add_pyodide, pack_modules
from sphinx.application import Sphinx
from teaching import KNOWN, pipeline_parser, ring_parser, sampler_parser

from ddp_course.lab.figures.style import RANK_COLOURS
from ddp_course.lab.ring_order import MOST_RANKS, steps
from ddp_course.plan.flags import GPUS, plan_parser, predict_parser
from ddp_course.plan.models import MODELS


def numbers(first: int, last: int) -> str:
    return " ".join(map(str, range(first, last + 1)))


GPU_COUNTS = "1 2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
SAMPLED = {"samples": "10", "ranks": "4", "epoch": "0"}
LINKS = "10Gb 25Gb 50Gb 100Gb 200Gb 400Gb 800Gb"
SLIDERS = {  # flag: its values on the slider, and the first one shown
    "plan": {
        "--params": ("125M 350M 760M 1.3B 3B 7e9 13B 30B 70B 180B 405B 1T", "7e9"),
        "--gpus": (GPU_COUNTS, "64"),
        "--memory": ("16GB 24GB 32GB 40GB 48GB 80GB 96GB 141GB 192GB", "80GB"),
        "--link": (LINKS, "400Gb"),
    },
    "predict": {
        "--model": (" ".join(MODELS), "gpt2"),
        "--gpus": (GPU_COUNTS, "64"),
        "--link": (LINKS, "400Gb"),
        "--gpu": (" ".join(GPUS), "h100"),
        "--micro-batch": ("1 2 4 8 16 32 64", "8"),
    },
    "zero": {"--params": ("125M 350M 760M 1.3B 3B 7e9 13B 30B 70B 180B 405B 1T", "7e9"), "--gpus": (GPU_COUNTS, "8")},
    "pipeline": {
        "--stages": ("1 2 3 4 5 6 7 8", "4"),
        "--micro-batches": ("1 2 3 4 6 8 12 16 24 32", "4"),
        "--schedule": ("gpipe 1f1b", "1f1b"),
    },
    "buckets": {
        "--model": (" ".join(MODELS), "gpt2"),
        "--gpus": (GPU_COUNTS, "64"),
        "--bucket-mib": ("1 2 5 10 25 50 100 200 500 1000 2000 5000", "25"),
        "--link": (LINKS, "50Gb"),
    },
    "ring": {"--ranks": (numbers(2, MOST_RANKS), "4"), "--step": (numbers(0, steps(MOST_RANKS)), "0")},
    "sampler": {f"--{name}": (" ".join(map(str, KNOWN[name])), first) for name, first in SAMPLED.items()},
}
PLAYED = {"ring": "--step", "sampler": "--epoch"}  # the slider that a button moves
PARSERS = {
    "plan": plan_parser,
    "predict": predict_parser,
    "zero": plan_parser,
    "pipeline": pipeline_parser,
    "buckets": predict_parser,
    "ring": ring_parser,
    "sampler": sampler_parser,
}
COMMANDS = {name: f"python -m ddp_course.{name}" for name in ("plan", "predict")}
COMMANDS["explain"] = "python -m ddp_doctor explain"
PAGE = """\
```{{raw}} html
<noscript>
<style>form.calculator {{ display: none }}</style>
<p>This page computes with JavaScript.</p>
{answer}
</noscript>
<form class="calculator" data-command="{name}" data-colours="{colours}" autocomplete="off">
{fields}
</form>
{terminal}
<div class="calculator-pictures"></div>
<pre class="calculator-report" aria-live="polite" aria-busy="false"></pre>
<script defer src="../_static/calculator.js"></script>
```
"""
TERMINAL = """\
<p>The same in a terminal:</p>
<pre class="calculator-command">{}</pre>"""
ANSWER = """\
<p>It prints for <code>{}</code>:</p>
<pre class="calculator-report">{}</pre>"""
LOG_FIELDS = """\
<label><span>The log, of one rank or of all</span><textarea name="log" rows="12" spellcheck="false"
placeholder="[rank1]: Traceback (most recent call last): ..."></textarea></label>
<label><span>or a file</span><input type="file" name="file"></label>"""


def calculator(name: str) -> str:
    """The page's form, in Markdown."""
    sliders = SLIDERS.get(name, {})
    fields, command, answer = [LOG_FIELDS], f"{COMMANDS.get(name)} train.log", ""
    if name in PARSERS:
        actions = {action.option_strings[0]: action for action in PARSERS[name]()._actions}
        fields = [_field(actions[flag], *slider) for flag, slider in sliders.items()]
        words = " ".join(f"{flag} {value}" for flag, (_, value) in sliders.items())
        command = f"{COMMANDS.get(name, '')} {words}"
        answer = ANSWER.format(words, html.escape(in_browser.COMMANDS[name](words.split())["text"]))
        hidden = {"-h", "--published", *sliders}  # --published needs no other flag
        others = [_field(action) for flag, action in actions.items() if flag not in hidden]
        if name in COMMANDS:
            fields += ["<details><summary>More settings</summary>", *others, "</details>"]
        elif name == "sampler":
            fields += others
    if name in PLAYED:
        fields.append(f'<button type="button" data-play="{PLAYED[name]}">Play</button>')
    terminal = TERMINAL.format(command) if name in COMMANDS else ""
    return PAGE.format(
        name=name, colours=" ".join(RANK_COLOURS), fields="\n".join(fields), terminal=terminal, answer=answer
    )


def _field(action: argparse.Action, values: str = "", value: str = "") -> str:
    flag, attributes = action.option_strings[0], f'name="{action.option_strings[0]}"'
    if action.nargs == 0:
        field = f'<input type="checkbox" {attributes}>'
    elif action.choices and not values:
        options = "".join(f"<option>{choice}</option>" for choice in ("", *action.choices))
        field = f"<select {attributes}>{options}</select>"
    else:
        field = f'<input type="text" {attributes} value="{value}" autocapitalize="off" spellcheck="false">'
    text = html.escape((action.help or "") % vars(action))
    slider = ""
    if values:
        last, chosen = len(values.split()) - 1, values.split().index(value)
        slider = (
            f'<input type="range" aria-label="{flag}" data-flag="{flag}" data-values="{values}" max="{last}" '
            f'value="{chosen}">'
        )
    return f"<div><label><span><code>{flag}</code> {text}</span>{field}</label>{slider}</div>"


def add_python(app: Sphinx, exception: Exception | None) -> None:
    """Adds Pyodide and the modules to the built site."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    pack_modules(static / "course.zip")
    add_pyodide(static / "pyodide")


def add_form(app: Sphinx, name: str, source: list[str]) -> None:
    if "{{ calculator }}" in source[0]:
        source[0] = source[0].replace("{{ calculator }}", calculator(Path(name).name))


def forms(app: Sphinx, env, added, changed, removed) -> list[str]:
    """The pages that change with a flag or a slider here, which Sphinx does not compare with the last build."""
    return [name for name in env.found_docs if name.startswith("site/")]


def setup(app: Sphinx) -> dict:
    app.connect("env-get-outdated", forms)
    app.connect("source-read", add_form)
    app.connect("build-finished", add_python)
    return {"parallel_read_safe": True}
