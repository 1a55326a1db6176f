"""The ways to install the course that no other test takes, each in a fresh environment. They need a package index."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ddp_course.authoring import commands as authoring

ROOT = authoring.ROOT


@pytest.mark.weekly
def test_uv_installs_the_course(tmp_path):
    if not (uv := shutil.which("uv")):
        pytest.skip("uv is not installed")
    assert "uv pip install -e ." in (ROOT / "docs" / "hosted.md").read_text()
    for folder in ("ddp_course", "doctor"):  # an installation in place writes beside its source
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run(uv, "venv", "--python", sys.executable)
    plan = run(uv, "pip", "install", "--dry-run", "-e", ".")  # torch itself would be gigabytes
    [version] = re.findall(r"^ \+ torch==([\d.]+)", plan, re.MULTILINE)
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [torch] = [line for line in dependencies if line.startswith("torch>")]
    assert Requirement(torch).specifier.contains(version)
    run(uv, "pip", "install", "--no-deps", "-e", "./doctor", "-e", ".")
    code = "import ddp_course, ddp_doctor; print(ddp_course.__path__[0], ddp_doctor.__path__[0])"
    places = run(tmp_path / ".venv" / "bin" / "python", "-c", code)
    assert places.split() == [str(tmp_path / "ddp_course"), str(tmp_path / "doctor" / "ddp_doctor")]


@pytest.mark.smoke
def test_the_devcontainer_sets_up_as_make_does():
    config = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert config["postCreateCommand"] == "make .venv/.installed" and config["forwardPorts"] == [8888]
    python = config["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python == "${containerWorkspaceFolder}/.venv/bin/python"
    makefile = (ROOT / "Makefile").read_text()
    assert "VENV ?= .venv" in makefile and re.search(r"^READY := \$\(VENV\)/\.installed$", makefile, re.MULTILINE)
