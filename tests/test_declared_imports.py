"""Every module that the course imports comes with a distribution that pyproject.toml declares."""

import ast
import functools
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import cell_label, read_notebook
from ddp_course.lab.source import written_files

pytestmark = pytest.mark.smoke

ROOT = authoring.ROOT
# {module: the declared distribution that provides it under another name, or requires its distribution}
BROUGHT_BY = {
    **dict.fromkeys(["IPython", "debugpy", "ipykernel", "jupyter_client", "pexpect"], "jupyterlab"),
    **dict.fromkeys(["jsonschema", "nbclient", "nbformat", "pygments"], "nbconvert"),
    **{"PIL": "matplotlib", "fsspec": "torch", "huggingface_hub": "tokenizers", "safetensors": "accelerate"},
    **{"pydantic": "kubeflow-trainer-api", "yaml": "pyyaml"},
}
READERS_OWN = {"nanochat", "ray"}  # installed by a reader who has such a checkpoint, or such a cluster


@functools.cache
def declared(folder: str) -> set[str]:
    """The distributions that the pyproject.toml of a folder declares, extras included, and its own."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    lines = sum(project.get("optional-dependencies", {}).values(), project["dependencies"])
    return {project["name"], *(Requirement(line).name for line in lines)}


def undeclared(source: str, folder: str = ".") -> list[str]:
    """The modules that a source imports and that neither Python nor a distribution declared by the folder has."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    names = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - READERS_OWN
    return sorted(name for name in names if BROUGHT_BY.get(name, name.replace("_", "-")) not in declared(folder))


@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_cells_and_their_scripts_import_what_is_declared(folder):
    faults = []
    for path in authoring.select(ROOT, (folder,), []):
        nb = read_notebook(path)
        code = {cell.id: cell.source for cell in nb.cells if cell.cell_type == "code"}
        scripts = set(re.findall(r"\bscripts/(\w+)\.py", "\n".join(code.values())))  # modules that a cell writes
        code |= {cell.id: text if name.endswith(".py") else "" for cell, name, text in written_files(nb)}
        for cell in nb.cells:
            missing = set(undeclared(code.get(cell.id, ""))) - scripts
            faults += [f"{path.name}, {cell_label(nb, cell)}: {module}" for module in sorted(missing)]
    assert not faults


@pytest.mark.parametrize(("package", "folder"), [("ddp_course", "."), ("doctor/ddp_doctor", "doctor")])
def test_a_package_imports_what_it_declares(package, folder):
    files = sorted((ROOT / package).rglob("*.py"))
    missing = {str(file.relative_to(ROOT)): undeclared(file.read_text(), folder) for file in files}
    assert files and not {file: modules for file, modules in missing.items() if modules}


def test_an_undeclared_import_is_named():
    assert undeclared("import os, torch.nn, yaml\ndef f():\n    from nowhere.near import x\n") == ["nowhere"]
