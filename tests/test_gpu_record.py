"""The record of `make gpu` is read and shown; a missing GPU or record is reported in one sentence."""

import ast
import json
import re
import subprocess
import sys

import pytest
import torch
from training_runs import ROOT

from ddp_course.authoring.notebook_run import read_notebook
from ddp_course.base.errors import InputError
from ddp_course.lab import gpu_record

pytestmark = pytest.mark.smoke

PAGES = ["README.md", "docs/trainers.md", "benchmarks/RESULTS.md", "notebooks/04_ddp.ipynb"]
PAGES += ["ddp_course/minigpt_ddp.py", "ddp_course/skeleton_ddp.py", "notebooks/cheat_sheet.md"]
GPU = ROOT / "benchmarks" / "gpu.py"
MADE = {
    "made_by_hand": True,
    "part": "compile",
    "machine": {"GPUs": "NVIDIA H000", "torch": "2.13.0", "commit": "0000000"},
    "date": "2026-01-01",
    "command": "torchrun x.py --preset gpt2 <&>",
    "rows": [{"": "eager", "tokens/s": 1000}, {"": "compiled", "tokens/s": 1500, "MFU": "40.0%"}],
    "text": "first line\n\nlast line",
    "files": ["compile_x.gz"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_record, "RECORDS", tmp_path)
    monkeypatch.setattr(gpu_record, "display", lambda block: print(block.data))
    return tmp_path


def test_a_record_is_shown_folded_with_machine_command_rows_and_text(folder, capsys):
    (folder / "compile.json").write_text(json.dumps(MADE))
    gpu_record.show_gpu_record("compile")
    block = capsys.readouterr().out
    assert block.startswith("<details><summary>made by hand, not measured: on a GPU (NVIDIA H000, 2026")
    for part in ("torch 2.13.0", "commit 0000000", "--preset gpt2 &lt;&amp;&gt;", "compile_x.gz"):
        assert part in block
    rows = [re.findall("<t[hd]>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", block)]
    assert rows == [["", "tokens/s", "MFU"], ["eager", "1000", ""], ["compiled", "1500", "40.0%"]]
    assert "<pre>first line\nlast line</pre>" in block and "" not in block.splitlines()  # Markdown would end the block


def test_without_a_record_a_sentence_says_so(folder, capsys):
    gpu_record.show_gpu_record("compile", "hang")
    assert capsys.readouterr().out == f"{gpu_record.NO_RECORD}\n"


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({**MADE, "rows": "none"})])
def test_a_file_that_is_no_record_is_refused_in_a_sentence(folder, text):
    (folder / "compile.json").write_text(text)
    with pytest.raises(InputError, match="compile.json"):
        gpu_record.show_gpu_record("compile")


def parts() -> list[str]:
    """The keys of PARTS in gpu.py, which changes the environment when it is imported."""
    nodes = [node for node in ast.parse(GPU.read_text()).body if isinstance(node, ast.Assign)]
    [table] = [node.value for node in nodes if ast.unparse(node.targets[0]) == "PARTS"]
    return [key.value for key in table.keys]


def test_every_launchable_is_run():
    launchables = GPU.read_text().partition("def launchables")[2].partition("def gloo(")[0]
    for path in (ROOT / "ddp_course").glob("*_ddp.py"):
        assert f'"{path.stem.removesuffix("_ddp")}"' in launchables, path.name


def test_all_parts_together_take_20_minutes():
    assert sum(map(float, re.findall(r'Part\(".*", ([\d.]+), \w+\)', GPU.read_text()))) <= 20
    assert len(parts()) == 10


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: make gpu runs it")
def test_without_a_gpu_nothing_is_started():
    run = subprocess.run([sys.executable, GPU], capture_output=True, text=True)
    assert run.returncode == 1 and run.stdout == ""
    build = f"torch {torch.__version__} (CUDA {torch.version.cuda})"
    assert run.stderr == f"make gpu needs an NVIDIA GPU, and {build} sees none: is the driver too old?\n"


@pytest.mark.parametrize("name", PAGES)
def test_pages_say_on_cpus_so_far_exactly_while_there_is_no_record(name):
    record = "peers" if "benchmarks" in name else "launchables"
    words = " ".join((ROOT / name).read_text().split())
    assert ("on CPUs so far" in words) == (gpu_record.read_record(record) is None)


def test_notebooks_show_records_that_make_gpu_writes():
    shown = {}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        code = "".join(cell.source for cell in read_notebook(path).cells if cell.cell_type == "code")
        for words in re.findall(r"show_gpu_record\((.*?)\)", code):
            shown.setdefault(path.stem.partition("_")[0], []).extend(re.findall(r"\w+", words))
    assert sorted(shown) == ["04", "07", "07b", "10", "11", "14", "16b", "17"]
    assert set().union(*shown.values()) <= set(parts())
