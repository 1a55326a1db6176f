"""The ways to install the course that no other test takes, each in a fresh environment. They need a package index."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_course.authoring import commands as authoring

ROOT = authoring.ROOT


@pytest.mark.weekly
def test_uv_installs_the_course(tmp_path):
    if not (uv := shutil.which("uv")):
        pytest.skip("uv is not installed")
    assert "uv pip install -e ./doctor -e ." in (ROOT / "docs" / "hosted.md").read_text()
    for folder in ("ddp_course", "doctor"):  # an installation in place writes beside its source
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    for command in (
        ["venv", "--python", sys.executable],
        ["pip", "install", "--torch-backend", "cpu", "-e", "./doctor", "-e", "."],
    ):
        subprocess.run([uv, *command], cwd=tmp_path, env=environment, check=True)
    python = tmp_path / ".venv" / "bin" / "python"
    code = "import ddp_doctor, ddp_course.minigpt_ddp as m; print(m.__file__)"
    run = subprocess.run([python, "-c", code], cwd="/", capture_output=True, text=True)
    assert Path(run.stdout.strip()) == tmp_path / "ddp_course" / "minigpt_ddp.py", run.stderr


@pytest.mark.smoke
def test_the_devcontainer_sets_up_as_make_does():
    config = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert config["postCreateCommand"] == "make .venv/.installed" and config["forwardPorts"] == [8888]
    python = config["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python == "${containerWorkspaceFolder}/.venv/bin/python"
    makefile = (ROOT / "Makefile").read_text()
    assert "VENV ?= .venv" in makefile and re.search(r"^READY := \$\(VENV\)/\.installed$", makefile, re.MULTILINE)
