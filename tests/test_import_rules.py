"""Which modules a fresh process loads. The import rules themselves are in pyproject.toml, checked by lint-imports."""

import re
import subprocess
import sys
import tomllib

import pytest

from ddp_course.authoring import commands as authoring

pytestmark = pytest.mark.smoke

PACKAGE = authoring.ROOT / "ddp_course"
PYPROJECT = tomllib.loads((authoring.ROOT / "pyproject.toml").read_text())
CONTRACTS = PYPROJECT["tool"]["importlinter"]["contracts"]
IN_A_RANK = next(contract for contract in CONTRACTS if contract["name"].startswith("What runs in a rank"))
LOADED_WHEN_CHOSEN = {"tokenizers", "tiktoken", "rustbpe", "transformers", "nanochat"}


def printed_by(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_rank_loads_no_forbidden_module():
    rooms = [PACKAGE.parent.joinpath(*name.split(".")) for name in IN_A_RANK["source_modules"]]
    files = [file for room in rooms for file in (sorted(room.rglob("*.py")) or [room.with_suffix(".py")])]
    modules = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files]
    assert "ddp_course.checkpoint.checkpoint" in modules and "ddp_course.minigpt_ddp" in modules
    never = LOADED_WHEN_CHOSEN | set(IN_A_RANK["forbidden_modules"])
    code = f"import sys, importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
    assert printed_by(f"{code}print(sorted(set(sys.modules) & {never!r}))") == "[]"


def test_modules_that_start_ranks_do_not_import_torch():
    starters = ["launcher", "cluster.job", "predict.__main__", "plan.__main__", "lab.figures"]
    code = "".join(f"import ddp_course.{name}\n" for name in starters) + "import sys; print('torch' in sys.modules)"
    assert printed_by(code) == "False", "loading torch costs every kernel and every command a second"


def test_no_module_hides_another_from_the_scripts_in_its_folder():
    """Python puts a script's folder first on its path."""
    needed = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in PYPROJECT["project"]["dependencies"]}
    assert not {path.stem for path in PACKAGE.iterdir()} & (sys.stdlib_module_names | needed)
