"""Pages that compute: the package's own Python runs in the reader's browser.

The build adds Pyodide, pinned, and a zip of the modules to _static/. The fields of a form are the command's flags. A
page fetches nothing from another site.
"""

import argparse
import html
from collections.abc import Iterable
from pathlib import Path

from in_browser import PAGES, calculate
from packing import add_pyodide, pack_modules
from sampler_table import EPOCHS, RANKS, SAMPLES
from sphinx.application import Sphinx

from ddp_course.lab.figures.style import RANK_COLOURS
from ddp_course.lab.ring_order import MOST_RANKS, steps
from ddp_course.plan.flags import GPUS
from ddp_course.plan.models import MODELS


def joined(values: Iterable[object]) -> str:
    return " ".join(map(str, values))


GPU_COUNTS = "1 2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
PARAMETERS = "125M 350M 760M 1.3B 3B 7e9 13B 30B 70B 180B 405B 1T"
LINKS = "10Gb 25Gb 50Gb 100Gb 200Gb 400Gb 800Gb"
SLIDERS = {  # page -> flag -> the values on its slider, and the one shown first
    "plan": {
        "--params": (PARAMETERS, "7e9"),
        "--gpus": (GPU_COUNTS, "64"),
        "--memory": ("16GB 24GB 32GB 40GB 48GB 80GB 96GB 141GB 192GB", "80GB"),
        "--link": (LINKS, "400Gb"),
    },
    "predict": {
        "--model": (joined(MODELS), "gpt2"),
        "--gpus": (GPU_COUNTS, "64"),
        "--link": (LINKS, "400Gb"),
        "--gpu": (joined(GPUS), "h100"),
        "--micro-batch": ("1 2 4 8 16 32 64", "8"),
    },
    "zero": {"--params": (PARAMETERS, "7e9"), "--gpus": (GPU_COUNTS, "8")},
    "pipeline": {
        "--stages": ("1 2 3 4 5 6 7 8", "4"),
        "--micro-batches": ("1 2 3 4 6 8 12 16 24 32", "4"),
        "--schedule": ("gpipe 1f1b", "1f1b"),
    },
    "buckets": {
        "--model": (joined(MODELS), "gpt2"),
        "--gpus": (GPU_COUNTS, "64"),
        "--bucket-mib": ("1 2 5 10 25 50 100 200 500 1000 2000 5000", "25"),
        "--link": (LINKS, "50Gb"),
    },
    "ring": {"--ranks": (joined(range(2, MOST_RANKS + 1)), "4"), "--step": (joined(range(steps(MOST_RANKS) + 1)), "0")},
    "sampler": {
        "--samples": (joined(SAMPLES), "10"),
        "--ranks": (joined(RANKS), "4"),
        "--epoch": (joined(EPOCHS), "0"),
    },
}
PLAYED = {"ring": "--step", "sampler": "--epoch"}  # page -> the slider that its button moves
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
    """The form of the page, in Markdown."""
    if name == "explain":
        fields, command, answer = [LOG_FIELDS], f"{COMMANDS[name]} train.log", ""
    else:
        parser, sliders = PAGES[name][0](), SLIDERS[name]
        actions = {action.option_strings[0]: action for action in parser._actions}
        fields = [_field(actions[flag], *slider) for flag, slider in sliders.items()]
        words = " ".join(f"{flag} {value}" for flag, (_, value) in sliders.items())
        command = f"{COMMANDS.get(name, '')} {words}"
        answer = ANSWER.format(words, html.escape(calculate(name, words.split())["text"]))
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
        name=name, colours=joined(RANK_COLOURS), fields="\n".join(fields), terminal=terminal, answer=answer
    )


def _field(action: argparse.Action, values: str = "", value: str = "") -> str:
    """The field of a flag, with a slider if `values` are given."""
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
    """Add Pyodide and the modules to the built site."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    pack_modules(static / "course.zip")
    add_pyodide(static / "pyodide")


def add_form(app: Sphinx, name: str, source: list[str]) -> None:
    if "{{ calculator }}" in source[0]:
        source[0] = source[0].replace("{{ calculator }}", calculator(Path(name).name))


def outdated_pages(app: Sphinx, env, added, changed, removed) -> list[str]:
    """The pages to build again: Sphinx does not see that a flag or a slider has changed."""
    return [name for name in env.found_docs if name.startswith("site/")]


def setup(app: Sphinx) -> dict:
    app.connect("env-get-outdated", outdated_pages)
    app.connect("source-read", add_form)
    app.connect("build-finished", add_python)
    return {"parallel_read_safe": True}
