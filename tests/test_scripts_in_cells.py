"""The scripts that `%%writefile` cells write are real programs: ruff and the compiler never see them otherwise."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import WRITE_FOLDERS, cell_label, read_notebook
from ddp_course.lab.source import written_files

pytestmark = pytest.mark.smoke

NOTEBOOKS = authoring.select(authoring.ROOT, ("notebooks", "solutions"), [])
LESSONS = authoring.ROOT / "notebooks"
ABSOLUTE = re.compile(r"/(tmp\b|(?!proc/|sys/|dev/)[A-Za-z][\w.-]*/)|[A-Za-z]:\\")
FIXED_PORT = re.compile(
    r"""tcp://[^\s"'{}]*:[1-9]\d+ | (?:localhost|127\.0\.0\.1|0\.0\.0\.0|::1\]):[1-9]\d+ |
        MASTER_PORT["'\]]*\s*[=:,]\s*["']?[1-9]\d+ | master[-_]port["'\s=,:]+[1-9]\d+ |
        TCPStore\([^)\n]*,\s*[1-9]\d{3,4}\b""",
    re.VERBOSE,
)
GIVEN = sorted(authoring.ROOT.glob("solutions/*/*/given.py"))
EXCHANGE = re.compile(
    r"\b(all_|reduce|broadcast|gather|scatter|barrier|i?send|i?recv|Distributed|Schedule|fully_shard)\w*\("
)
FROM_ELSEWHERE = re.compile(r"\b(from ddp_course|import_module\(|run_path\()")  # an exchange there is not visible here


@pytest.fixture(scope="module")
def ruff_faults(tmp_path_factory):
    """(destination, text) -> the faults that ruff finds, for the scripts of all notebooks and of the tests below."""
    scripts = {(destination, text) for path in NOTEBOOKS for _, destination, text in written_files(read_notebook(path))}
    scripts |= {("scripts/good.py", GOOD), *(("scripts/wrong.py", text) for text, _ in WRONG.values())}
    return ruff(scripts, tmp_path_factory.mktemp("scripts"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_scripts_in_cells(path, ruff_faults):
    nb = read_notebook(path)
    faults = [
        f"{path.parent.name}/{path.name}, {cell_label(nb, cell)}: {problem}"
        for cell, destination, text in written_files(nb)
        for problem in problems(destination, text, ruff_faults)
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.parametrize("notebook", ["06_big_batches", "08_metrics_and_io"])
def test_the_script_that_grows_grows_towards_the_skeleton(notebook):
    written = {name: text for _, name, text in written_files(read_notebook(LESSONS / f"{notebook}.ipynb"))}
    grown = functions(written[f"scripts/train_{notebook[:2]}.py"])
    skeleton = functions((authoring.ROOT / "ddp_course" / "skeleton_ddp.py").read_text())
    assert grown["micro_batches"] == skeleton["micro_batches"]
    # the script to copy adds lines: it refuses senseless values, and its exit code tells the scheduler of a stop
    lines = iter(skeleton["main"].replace("stopped = train(", "train(").splitlines())
    assert all(line in lines for line in grown["main"].splitlines()), "its lines, in their order"
    assert grown.keys() <= skeleton.keys(), "a function that the script to copy does not have"


def functions(source: str) -> dict[str, str]:
    """{name: its text} of the functions of a script."""
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(source, node) for node in nodes}


def problems(destination: str, text: str, ruff_faults: dict[tuple[str, str], list[str]]) -> list[str]:
    """The faults of a file that a cell writes. Files that are no Python (a SLURM job, say) need only a folder."""
    if not in_write_folder(destination):
        return [f"writes {destination}; a cell writes to scripts/ or answers/ only, in one piece"]
    if not destination.endswith(".py"):
        return []
    try:
        tree = ast.parse(text, destination)
        compile(tree, destination, "exec")
    except SyntaxError as error:
        return [f"does not compile: {error}"]
    faults = [*absolute_paths(tree), *fixed_ports(text), *endings(destination, text), *ddp_outlives_group(tree)]
    return [*faults, *ruff_faults[destination, text]]


def in_write_folder(destination: str) -> bool:
    parts = PurePosixPath(destination).parts
    return parts[0] in WRITE_FOLDERS and ".." not in parts


def absolute_paths(tree: ast.AST):
    in_the_middle = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values[1:]
    }  # of an f-string: f"{folder}/weights/" is no absolute path
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in in_the_middle:
            if ABSOLUTE.match(node.value):
                yield f"line {node.lineno}: {node.value!r} is an absolute path; it is not there on another machine"


def fixed_ports(text: str):
    for number, line in enumerate(text.splitlines(), start=1):
        if FIXED_PORT.search(line):
            yield f"line {number}: a fixed port ({line.strip()}); two runs at once collide: let torchrun choose one"


def endings(destination: str, text: str):
    """Faults at the begin and end of a script with a group: gloo's threads can abort it (the note at the end of 04)."""
    for odd in ("os._exit", "gc.collect"):
        if odd in text and destination.startswith("scripts/"):
            yield f"{odd}: a script ends with dist.destroy_process_group() and nothing else"
    if "init_process_group(" not in text:
        return
    loads_it_later = re.search(r"optim\.|DistributedDataParallel\(|torch\.profiler", text)
    if loads_it_later and "\nimport torch.distributed.nn" not in text:
        yield "makes a group and an optimizer, DDP or a profile without `import torch.distributed.nn` at its top"
    if destination.startswith("scripts/") and "destroy_process_group()" not in text:
        yield "makes a group and does not end with dist.destroy_process_group()"
    if not EXCHANGE.search(text) and not FROM_ELSEWHERE.search(text):
        yield "its ranks exchange nothing: a dist.barrier() before the end, or one leaves while another still connects"


def ddp_outlives_group(tree: ast.AST):
    """DDP that outlives its group: its end then waits for gloo's thread, which may wait for Python (it did in 15)."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            text = ast.unparse(function)
            if "DistributedDataParallel(" in text and "destroy_process_group(" in text:
                yield f"{function.name} destroys the group while it holds a DDP model: do it after {function.name}"


def ruff(scripts: Iterable[tuple[str, str]], folder: Path) -> dict[tuple[str, str], list[str]]:
    """(destination, text) -> the faults that ruff finds. It is started once: a start takes longer than all checks."""
    files = {}
    for number, (destination, text) in enumerate(scripts):
        if destination.endswith(".py") and in_write_folder(destination):
            file = folder / str(number) / destination
            file.parent.mkdir(parents=True)
            file.write_text(text.rstrip("\n") + "\n")
            files[str(file)] = destination, text
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--no-cache", "--output-format", "json"]
    command += ["--config", "pyproject.toml", *files]
    run = subprocess.run(command, cwd=authoring.ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode in (0, 1), run.stderr  # 1: there are faults
    faults = {script: [] for script in files.values()}
    for fault in json.loads(run.stdout):
        script = files[fault["filename"]]
        faults[script].append(f"ruff: line {fault['location']['row']}: {fault['code']} {fault['message']}")
    return faults


GOOD = """import os

import torch.distributed as dist

from ddp_course.base.errors import InputError

os.environ.setdefault("OMP_NUM_THREADS", "1")
folder = os.environ.get("RUN", "runs")
print(f"{folder}/weights/final", "/proc/self/status", "tokens/s", dist, InputError)
os.environ["MASTER_PORT"] = "0"
"""
WRONG = {
    "syntax": ("def f(:\n    pass\n", "does not compile"),
    "leaves at once": ("import os\n\nos._exit(0)\n", "os._exit"),
    "late import": ('import torch\n\ntorch.distributed.init_process_group("gloo")\ntorch.optim.SGD([])\n', "top"),
    "late by a profile": (
        'import torch.distributed as dist\n\ndist.init_process_group("gloo")\nfrom torch.profiler import profile\n',
        "at its top",
    ),
    "exchanges nothing": (
        'import torch.distributed as dist\n\ndist.init_process_group("gloo")\ndist.destroy_process_group()\n',
        "exchange nothing",
    ),
    "never leaves": ('import torch.distributed as dist\n\ndist.init_process_group("gloo")\n', "does not end with"),
    "holds its model": (
        "def f(DistributedDataParallel, dist):\n    net = DistributedDataParallel()\n"
        "    dist.destroy_process_group()\n    return net\n",
        "f destroys the group while it holds a DDP model",
    ),
    "undefined name": ("print(torch)\n", "F821"),
    "unused import": ("import os\n", "F401"),
    "unsorted imports": ("import torch\nimport os\n\nprint(os, torch)\n", "I001"),
    "long line": (f"x = '{'x' * 130}'\n", "E501"),
    "absolute path": ("open('/tmp/x')\n", "line 1: '/tmp/x' is an absolute path"),
    "someone's home": ("x = 1\nopen(f'/home/{x}')\n", "line 2: '/home/' is an absolute path"),
    "port in the environment": ('import os\n\nos.environ["MASTER_PORT"] = "29500"\n', "line 3: a fixed port"),
    "port by keyword": ("f = dict\nf(master_port=29500)\n", "a fixed port"),
    "port in an address": ('x = "tcp://localhost:12345"\n', "a fixed port"),
    "port of a store": ("def f(TCPStore):\n    TCPStore('127.0.0.1', 29500, 2)\n", "a fixed port"),
}


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: str(path.parent.relative_to(path.parents[2])))
def test_a_given_script_begins_and_ends_as_all_scripts(path):
    assert list(endings("scripts/given.py", path.read_text())) == []


def test_a_right_script_passes(ruff_faults):
    assert problems("scripts/good.py", GOOD, ruff_faults) == []
    assert problems("scripts/job.sbatch", "#SBATCH --output=/home/%u/x\nexport MASTER_PORT=29500\n", {}) == []


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_script_is_named(what, ruff_faults):
    text, message = WRONG[what]
    faults = problems("scripts/wrong.py", text, ruff_faults)
    assert any(message in problem for problem in faults), faults


@pytest.mark.parametrize("destination", ["one.py", "../scripts/one.py", "/tmp/scripts/one.py", "-a scripts/one.py"])
def test_a_script_in_the_wrong_place_is_named(destination):
    assert "scripts/ or answers/ only" in problems(destination, "x = 1\n", {})[0]


def test_scripts_are_found_in_cells():
    script, plain = new_code_cell("%%writefile scripts/a.py\nx = 1\ny = 2"), new_code_cell("x = 1")
    nb = new_notebook(cells=[script, plain, new_markdown_cell("%%writefile scripts/no.py")])
    assert list(written_files(nb)) == [(script, "scripts/a.py", "x = 1\ny = 2")]
