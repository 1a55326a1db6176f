"""Who may import whom in ddp_course, read from the source, and what a rank really loads, seen in a fresh process.

base                    <- nothing of ours
models, data            <- base; data: checkpoint, too, which knows what the folder of a run is
distributed, checkpoint, training   <- nothing that knows a model
post_training, ladder, trainers
                        <- models, data, distributed, training: they run inside a rank
launchable scripts      <- all of the above
launcher, cluster, lab, grader, authoring, speedrun, predict, plan: for notebooks, tests and authors; never
inside a rank
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ddp_course.authoring import commands as authoring

pytestmark = pytest.mark.smoke

PACKAGE = authoring.ROOT / "ddp_course"
IN_A_RANK = {
    "base",
    "models",
    "data",
    "distributed",
    "checkpoint",
    "training",
    "post_training",
    "trainers",
    "ladder",
    "launchable",
}
FOR_ALL = {"base"}
ALLOWED = {  # part of the package: the parts it may import, besides itself and FOR_ALL
    "models": set(),
    "data": {"checkpoint"},
    "distributed": set(),
    "checkpoint": {"distributed"},
    "training": {"distributed", "checkpoint"},
    "post_training": {"models", "data", "distributed", "checkpoint", "training"},
    "trainers": {"models", "data", "distributed", "checkpoint", "training"},
    "ladder": {"models", "data", "distributed", "checkpoint", "training"},
    "launchable": IN_A_RANK - {"launchable"},
    "launcher": set(),
    "lab": {"launcher", "grader"},
    "cluster": {"launcher"},
    "authoring": {"launcher", "grader"},
    "grader": IN_A_RANK | {"launcher", "harness", "predict"},
    "speedrun": IN_A_RANK | {"lab", "launcher"},
    "predict": {"training"},  # of training: what a program does when its output has no reader
    "plan": {"predict", "training"},
    "harness": IN_A_RANK | {"launcher"},  # what the grader starts inside a rank
    "template": IN_A_RANK,  # what a cluster's operator starts inside a rank
}
NOT_IN_A_RANK = {
    "matplotlib",
    "IPython",
    "ipykernel",
    "jupyter",
    "jupyter_client",
    "jupyter_core",
    "nbclient",
    "nbconvert",
    "nbformat",
    "papermill",
}
NOT_AT_IMPORT = NOT_IN_A_RANK | {"tokenizers", "tiktoken", "rustbpe", "transformers", "nanochat"}  # when chosen


def part_of(module: str) -> str | None:
    """A key of ALLOWED; None for the package itself and what every part may import."""
    names = module.split(".")
    if module.startswith("ddp_course.grader.harness"):
        return "harness"
    if module.startswith("ddp_course.cluster.templates"):
        return "template"
    if module == "ddp_course" or names[1] in FOR_ALL:
        return None
    return names[1] if names[1] in ALLOWED else "launchable"


def module_name(path: Path, package: Path) -> str:
    names = ["ddp_course", *path.relative_to(package).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(path: Path, package: Path):
    """(line, dotted name) for everything the file imports, also inside functions. `from a import b` gives a.b."""
    name = module_name(path, package)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: the first dot is the package the file stands in
                package_names = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                above = package_names[: len(package_names) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def is_module(dotted: str, package: Path) -> bool:
    path = package.joinpath(*dotted.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").exists()


def broken_rules(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        here = module_name(path, package)
        part = part_of(here)
        for line, imported in imports(path, package):
            place = f"{path.relative_to(package.parent)}:{line}"
            in_a_rank = part is None or part in IN_A_RANK | {"harness", "template"}
            if imported.split(".")[0] in NOT_IN_A_RANK and in_a_rank:
                found.append(f"{place}: imports {imported}, but may run inside a rank")
            if imported.split(".")[0] != "ddp_course":
                continue
            target = imported if is_module(imported, package) else imported.rpartition(".")[0]
            there = part_of(target)
            same = here == target or (part == there and part != "launchable")
            if there is not None and not same and there not in ALLOWED.get(part, set()):
                found.append(f"{place}: {part or 'the package itself'} may not import {there} ({target})")
    standard = sys.stdlib_module_names | dependencies()
    for path in sorted(package.iterdir()):
        if (path.suffix == ".py" or path.is_dir()) and path.stem in standard:
            found.append(f"ddp_course/{path.name} hides the module {path.stem!r} from every script in its folder")
    return found


def dependencies() -> set[str]:
    """The import names of what pyproject.toml asks for (the same as their package names, but for - and _)."""
    project = tomllib.loads((authoring.ROOT / "pyproject.toml").read_text())["project"]
    return {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in project["dependencies"]}


def test_imports_in_the_package():
    assert broken_rules(PACKAGE) == []


def test_what_a_rank_loads():
    modules = [module_name(path, PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    modules = [module for module in modules if part_of(module) in IN_A_RANK]
    assert "ddp_course.checkpoint.checkpoint" in modules
    never = NOT_AT_IMPORT | {f"ddp_course.{part}" for part in ALLOWED.keys() - IN_A_RANK}
    code = (
        f"import sys, importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        f"print(sorted(set(sys.modules) & {never!r}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]", "importing the package loads what only a notebook needs"


def test_what_starts_ranks_does_not_wait_for_torch():
    starters = ["launcher", "cluster.job", "predict.__main__", "plan.__main__", "lab.figures"]
    code = "".join(f"import ddp_course.{name}\n" for name in starters) + "import sys; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert run.stdout == "False\n", run.stderr or "torch takes a second to load, of every kernel and of each command"


WRONG = {
    "models know data": ("models/m.py", "from ddp_course.data import windows", "models may not import data"),
    "models know lab": ("models/m.py", "import ddp_course.lab.figures", "models may not import lab"),
    "data know training": ("data/d.py", "if 1:\n    from ddp_course import training", "data may not import training"),
    "training knows a model": ("training/t.py", "from ..models.minigpt import GPT", "training may not import models"),
    "training knows data": ("training/t.py", "from ddp_course import data", "training may not import data"),
    "distributed knows training": ("distributed/d.py", "from ddp_course import training", "may not import training"),
    "distributed knows a script": ("distributed/d.py", "import ddp_course.train_ddp", "may not import launchable"),
    "a rung knows lab": ("ladder/r.py", "from ddp_course.lab import figures", "ladder may not import lab"),
    "a rung knows a script": ("ladder/r.py", "from ddp_course import train_ddp", "ladder may not import launchable"),
    "training knows the ladder": ("training/t.py", "from ddp_course import ladder", "training may not import ladder"),
    "a script starts ranks": ("train_ddp.py", "from .launcher.launch import torchrun", "may not import launcher"),
    "a script knows a script": ("train_ddp.py", "from ddp_course import other_ddp", "may not import launchable"),
    "the harness knows the grader": ("grader/harness/run.py", "from ddp_course.grader import check", "import grader"),
    "lab trains": ("lab/machine.py", "from ddp_course.training import checkpoint", "lab may not import training"),
    "errors know training": ("base/errors.py", "from ddp_course import training", "the package itself may not import"),
    "a rank draws": ("training/t.py", "def f():\n    import matplotlib.pyplot", "may run inside a rank"),
    "the harness draws": ("grader/harness/run.py", "from IPython.display import HTML", "may run inside a rank"),
    "name of the standard library": ("queue.py", "", "hides the module 'queue'"),
    "folder with such a name": ("profile/__init__.py", "", "hides the module 'profile'"),
    "name of a dependency": ("torch.py", "", "hides the module 'torch'"),
}
RIGHT = {
    "train_ddp.py": "from ddp_course.base.errors import InputError\nfrom ddp_course.training import sync",
    "other_ddp.py": "from ddp_course import data, models",
    "models/m.py": "from ddp_course.base import errors\nfrom .other import A\nfrom ddp_course.models import other",
    "models/other.py": "",
    "data/d.py": "import tokenizers\nfrom ddp_course.base.atomic_file import replacing",
    "base/atomic_file.py": "",
    "lab/figures.py": "import matplotlib\nfrom ddp_course.lab import machine",
    "lab/machine.py": "",
    "launcher/launch.py": "",
    "grader/check.py": "from ddp_course.launcher import launch\nfrom ddp_course import train_ddp",
    "grader/harness/run.py": "from ddp_course.training import sync\nfrom ddp_course.grader.harness import notes",
    "training/sync.py": "from ddp_course.base.errors import InputError\nfrom ddp_course.distributed import world",
    "distributed/world.py": "",
    "ladder/rungs.py": "from ddp_course.models import other\nfrom ddp_course.training import sync\nimport torch",
    "climb_ddp.py": "from ddp_course.ladder.rungs import A",
    "base/errors.py": "",
}


def write_package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "ddp_course" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "ddp_course"


def test_a_package_that_keeps_the_rules_passes(tmp_path):
    assert broken_rules(write_package(tmp_path, RIGHT)) == []


@pytest.mark.parametrize("what", WRONG)
def test_a_broken_rule_is_named(what, tmp_path):
    name, text, message = WRONG[what]
    found = broken_rules(write_package(tmp_path, {**RIGHT, name: text}))
    assert any(message in problem and (name in problem or name.split("/")[0] in problem) for problem in found), found
