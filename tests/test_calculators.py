"""The calculators' Python without a browser: the zip of their modules is enough, and answers as the commands do."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import in_browser
print(in_browser.answer(*json.load(sys.stdin)))
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("packing", ROOT / "site/packing.py")
    packing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packing)
    path = tmp_path_factory.mktemp("modules") / "course.zip"
    packing.pack_modules(path)
    return path


@pytest.mark.parametrize(
    ("command", "arguments", "pictures"),
    [
        ("plan", "--params 7B --gpus 8 --memory 80GB --link 100Gb", 2),
        ("plan", "--params 70B --gpus 2 --memory 16GB --link 100Gb", 1),
        ("plan", "--params 7B", 0),
        ("predict", "--gpus 4 --link 100Gb", 3),
        ("predict", "--gpus 4 --link fast", 0),
    ],
)
def test_the_text_is_that_of_the_command(modules, command, arguments, pictures):
    run = [sys.executable, "-ISc", ASK, modules]  # without what is installed, as in a browser
    asked = json.dumps([command, arguments.split()])
    answer = json.loads(subprocess.run(run, input=asked, capture_output=True, text=True, check=True).stdout)
    terminal = [sys.executable, "-m", f"ddp_course.{command}", *arguments.split()]
    printed = subprocess.run(terminal, cwd=ROOT, capture_output=True, text=True)
    assert answer["text"] == printed.stdout + printed.stderr
    assert len(answer["pictures"]) == pictures
