"""Install on a hosted machine (Colab, Kaggle) what the course needs beside what is there, for the torch that is there.

    python requirements/hosted.py        # what the first code cell of each notebook runs there

A package is replaced only if it is older than pyproject.toml allows, and torch never is.
"""

import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NOT_NEEDED = {"ddp-doctor", "jupyterlab", "nbconvert", "papermill"}  # from this folder; what runs notebooks is there


def lacking(requirements: list[str], versions: dict[str, str]) -> list[Requirement]:
    """The requirements that no package with its version in `versions` meets."""
    needed = [Requirement(line) for line in requirements]
    return [
        requirement
        for requirement in needed
        if (name := canonicalize_name(requirement.name)) not in NOT_NEEDED
        and (name not in versions or not requirement.specifier.contains(versions[name], prereleases=True))
    ]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["huggingface"]  # for notebook 27
    versions = {canonicalize_name(package.name): package.version for package in distributions() if package.name}
    to_install = {requirement.name: str(requirement) for requirement in lacking(requirements, versions)}
    if "torch" in to_install:
        sys.exit(f"The course needs {to_install['torch']}; this machine has {versions.get('torch', 'none')}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if to_install:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            kept = versions.keys() - to_install.keys()
            constraints.writelines(f"{name}=={versions[name]}\n" for name in sorted(kept))
            constraints.flush()
            subprocess.run([*pip, "--constraint", constraints.name, *to_install.values()], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", ROOT / "doctor", "--editable", ROOT], check=True)


if __name__ == "__main__":
    main()
