"""With several workers, tests that share what took long to make run on one of them."""

import inspect
import re
import subprocess
import sys

import conftest
from conftest import together

ON = re.compile(r"\[(gw\d)\].* PASSED (\S+?\.py)::")


def test_who_stays_with_whom():
    assert together("tests/test_table.py::test_one") == together("tests/test_table.py::test_two[a]")
    answers = "tests/grader/test_wrong_answers.py::test_a_right_answer_passes"
    assert together(f"{answers}[04.1-rotates]") == together(f"{answers}[04.3]") != together(f"{answers}[05.1-rotates]")
    notebook = "tests/test_notebooks.py::test_notebook_runs"
    assert together(f"{notebook}[notebooks/01_a]") != together(f"{notebook}[notebooks/02_b]")


def test_the_workers_keep_to_it(tmp_path):
    """Versions of pytest and xdist that do not fit each other once spread every file over all workers, in silence."""
    text = "import pytest\n\n@pytest.mark.parametrize('number', range(6))\ndef test(number):\n    pass\n"
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(text)
    ours = "".join(map(inspect.getsource, (conftest.pytest_xdist_make_scheduler, together)))  # alone: torch takes long
    (tmp_path / "conftest.py").write_text(f"import pytest\n\nSPREAD_OUT = ()\n{ours}")
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "load", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    found = ON.findall(done.stdout)
    assert len(found) == 12, done.stdout + done.stderr
    workers = {name: {worker for worker, where in found if where.endswith(name)} for name in ("test_a.py", "test_b.py")}
    assert all(len(ones) == 1 for ones in workers.values()), workers
