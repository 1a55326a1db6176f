"""Dependencies, pins and commands agree wherever they are written; the files that a visitor expects exist."""

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import WRITE_FOLDERS

pytestmark = pytest.mark.smoke

ROOT = authoring.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = "train test lab notebooks exercises bench lint kill-matrix fuzz smoke test-weekly gpu".split()
OF_THIS_PLATFORM = re.compile(r"platform_|sys_platform|os_name|python_|implementation_")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(*files: str) -> dict[str, set[str]]:
    """{name: versions} of requirements files in which every block is one version with hashes, in alphabetical order."""
    versions: dict[str, set[str]] = {}
    for file in files:
        text = text_of(f"requirements/{file}.txt")
        rest = re.sub(r"^(#.*|--index-url https://download\.pytorch\.org/whl/cpu)\n", "", text, flags=re.MULTILINE)
        marker, hashes = r"(?: ; [^\\\n]+)?", r"(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
        blocks = re.findall(rf"([a-z0-9.-]+)==([\w.+]+){marker}{hashes}", rest)
        assert re.fullmatch(rf"(?:[a-z0-9.-]+==[\w.+]+{marker}{hashes})+", rest), f"{file}.txt: a line without a hash"
        assert [name for name, _ in blocks] == sorted(name for name, _ in blocks), f"{file}.txt: not in order"
        for name, version in blocks:
            versions.setdefault(canonicalize_name(name), set()).add(version)
    return versions


def declared(*extras: str) -> list[Requirement]:
    """The requirements of pyproject.toml, with these extras and those they name (ddp-course[rustbpe,...])."""
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]
    waiting = list(extras)
    while waiting:
        for requirement in map(Requirement, PROJECT["optional-dependencies"][waiting.pop()]):
            if canonicalize_name(requirement.name) == PROJECT["name"]:
                waiting += requirement.extras
            else:
                requirements.append(requirement)
    return requirements


def installed_by(requirements: list[Requirement]) -> set[str]:
    """Names of the distributions that these requirements install, directly or through each other.

    Left out: requirements for some platforms or Pythons only, and those of a distribution that is not installed here.
    """
    visited: set[tuple[str, str]] = set()
    waiting = [(requirement.name, extra) for requirement in requirements for extra in ("", *requirement.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in visited:
            continue
        visited.add((canonicalize_name(name), extra))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            marker = str(requirement.marker or "")
            if OF_THIS_PLATFORM.search(marker) or (marker and not requirement.marker.evaluate({"extra": extra})):
                continue
            waiting += [(requirement.name, further) for further in ("", *requirement.extras)]
    return {name for name, _ in visited}


def test_environment_yml_says_what_pyproject_says():
    assert yaml.safe_load(text_of("environment.yml")) == {
        "name": PROJECT["name"],
        "channels": ["conda-forge"],
        "dependencies": [f"python{PROJECT['requires-python']}", "pip", {"pip": ["-e ./doctor", "-e .[dev]"]}],
    }


def test_everything_that_make_installs_is_pinned_with_hashes_and_within_the_ranges():
    pinned = pins("torch", "course")
    requirements = declared("dev")
    missing = sorted(installed_by(requirements) - set(pinned) - {"ddp-doctor"})  # in this repository
    assert not missing, f"requirements/ lacks {missing}; run: make pins"
    outside = [
        f"{requirement.name}=={version} is not {requirement.specifier}"
        for requirement in requirements
        if requirement.name != "ddp-doctor"
        for version in pinned[canonicalize_name(requirement.name)]
        if not requirement.specifier.contains(version)
    ]
    assert not outside, outside


@pytest.mark.parametrize("extra", ["peers", "wandb"])
def test_an_extra_is_pinned_in_a_file_of_its_own(extra):
    """Its file holds what the course does not: pip installs either without asking what it needs."""
    pinned = pins(extra)
    assert not pinned.keys() & pins("course", "torch").keys()
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        [version] = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version)


def test_both_builds_of_torch_are_pinned_and_only_one_brings_cuda():
    with_cuda, without = pins("torch"), pins("torch-cpu")
    assert with_cuda["torch"] == {"2.13.0"} and without == {"torch": {"2.13.0+cpu"}}
    assert {"nvidia-nccl-cu13", "nvidia-cudnn-cu13", "triton"} < set(with_cuda)
    assert not {name for name in pins("course") if name.startswith(("nvidia-", "cuda-", "triton"))}
    for file, indexes in {"torch": [], "torch-cpu": ["--index-url https://download.pytorch.org/whl/cpu"]}.items():
        assert [line for line in text_of(f"requirements/{file}.txt").splitlines() if line.startswith("-")] == indexes


def test_what_is_installed_here_is_what_is_pinned():
    pinned = pins("torch", "torch-cpu", "course", "peers", "wandb")
    folders = [folder for folder in sys.path if not folder.endswith("_vendor")]  # setuptools adds its own copies
    distributions = importlib.metadata.distributions(path=folders)
    here = {canonicalize_name(distribution.metadata["Name"]): distribution.version for distribution in distributions}
    others = {name: here[name] for name in here.keys() & pinned.keys() if here[name] not in pinned[name]}
    assert not others, f"installed in another version than pinned: {others}: delete .venv"


def test_requirements_of_requirements_are_found():
    assert {"torch", "sympy", "mpmath"} <= installed_by([Requirement("torch")])
    assert {"rustbpe", "tiktoken", "tensorboard", "pytest", "torch"} <= {r.name for r in declared("dev")}


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"]
)
def test_file_a_visitor_expects(name):
    assert (ROOT / name).is_file(), f"{name} is missing"


@pytest.mark.parametrize(("name", "most"), [("README.md", 1200), ("CONTRIBUTING.md", 900)])
def test_a_first_page_is_short(name, most):
    assert len(text_of(name).split()) <= most


def test_readme_starts_with_the_two_commands():
    top = "\n".join(text_of("README.md").splitlines()[:40])
    assert "make train" in top and "make lab" in top


def test_the_picture_of_the_readme_is_the_figure_of_notebook_04():
    assert (ROOT / "docs" / "one_loss_curve.png").read_bytes() == authoring.readme_picture(), (
        "run: make notebooks ARGS=04"
    )


def test_license_is_the_one_pyproject_names():
    assert PROJECT["license"] == "MIT"
    assert text_of("LICENSE").startswith("MIT License")


def test_folders_that_cells_write_to_are_there_in_a_fresh_clone():
    for folder in ("notebooks", "exercises", "solutions"):
        for written in WRITE_FOLDERS:
            assert (ROOT / folder / written / ".gitkeep").is_file(), f"{folder}/{written}: %%writefile makes no folder"


def test_continuous_integration_runs_smoke_first_then_all_and_the_rest_once_a_week():
    jobs = yaml.safe_load(text_of(".github/workflows/test.yml"))["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands.pop("test-torch") == ["make test-torch TORCH_VERSION=${{ matrix.torch }}"]
    assert commands == {name: [f".ci/run {name}"] for name in ("smoke", "test", "test-weekly")}
    assert jobs["test"]["needs"] == "smoke" and jobs["test-weekly"]["if"] == "github.event_name == 'schedule'"
    assert jobs["test"]["strategy"]["matrix"]["python"][0] == PROJECT["requires-python"].removeprefix(">=")
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert uses and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in uses), "pin by commit"


def test_the_oldest_and_the_newest_torch_are_tested_weekly_and_so_are_macos_and_the_newest_python():
    job = yaml.safe_load(text_of(".github/workflows/test.yml"))["jobs"]["test-torch"]
    assert job["if"] == "github.event_name == 'schedule'"
    systems, pythons, torches = zip(*(row.values() for row in job["strategy"]["matrix"]["include"]), strict=True)
    [requirement] = [requirement for requirement in declared() if requirement.name == "torch"]
    lowest, limit = sorted(Version(bound.version) for bound in requirement.specifier)
    versions = sorted(Version(version) for version in torches)
    assert versions[0].release[:2] == lowest.release and versions[-1].minor + 1 == limit.minor
    assert {"ubuntu-latest", "macos-latest"} == set(systems) and "3.14" in pythons


# ---- the Makefile, without running it ----------------------------------------------------------------------------


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    outer = "MAKEFLAGS MAKELEVEL MFLAGS NPROC OMP_NUM_THREADS RUN ARGS VENV PYTHON TORCH TORCH_VERSION".split()
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}" if path else environment["PATH"]
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


@functools.cache
def text_of_help() -> str:
    return make("help").stdout


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_target_and_sets_up_for_it(target, tmp_path):
    run = make("--dry-run", target, f"VENV={tmp_path}/venv")
    assert run.returncode == 0, run.stderr
    assert f"{tmp_path}/venv/bin/python -m pip " in run.stdout
    installs = [line for line in run.stdout.splitlines() if " install " in line]
    assert len(installs) >= 3
    for line in installs:
        assert "--require-hashes" in line or line.endswith("--no-deps --no-build-isolation -e ./doctor -e ."), line
    assert re.search(rf"^  make {target} +\S", text_of_help(), re.MULTILINE)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Makes a folder of stand-ins for nvidia-smi and getconf, to be put first on the PATH."""

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # which hides the GPUs from all other tests

    def write(gpus: int, cores: int) -> str:
        lines = "".join(f"echo 'GPU {i}: NVIDIA H200 (UUID: GPU-{i})'\n" for i in range(gpus))
        for name, text in {"nvidia-smi": lines or "exit 9\n", "getconf": f"echo {cores}\n"}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
            (tmp_path / name).chmod(0o755)
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("gpus", "cores", "processes", "threads"), [(0, 2, 2, 1), (0, 1, 2, 1), (0, 8, 2, 4), (8, 96, 8, 12)]
)
def test_make_train_fits_the_machine(commands, gpus, cores, processes, threads):
    run = make("--dry-run", "train", "ARGS=--seed 1", path=commands(gpus, cores))
    torchrun, draw = [line for line in run.stdout.splitlines() if "torchrun" in line or "lab.figures" in line]
    start = f"OMP_NUM_THREADS={threads} .venv/bin/torchrun --standalone --nproc-per-node={processes} "
    assert torchrun.startswith(f"{start}ddp_course/minigpt_ddp.py --run-dir runs/minigpt-2")
    assert torchrun.endswith(" --seed 1")
    assert draw.split()[-1] in torchrun.split(), "the figure is not drawn for the run that was trained"


@pytest.mark.parametrize(
    ("gpus", "chosen", "file"), [(0, [], "torch-cpu"), (8, [], "torch"), (0, ["TORCH=pypi"], "torch")]
)
def test_make_installs_the_torch_that_fits_the_machine(commands, tmp_path, gpus, chosen, file):
    if os.uname().sysname != "Linux":
        file = "torch"  # PyPI's is the only one there
    run = make("--dry-run", "lint", f"VENV={tmp_path}/venv", *chosen, path=commands(gpus, 4))
    assert f"-r requirements/{file}.txt" in run.stdout


def test_make_gpu_refuses_a_machine_without_one_before_it_sets_anything_up(commands, tmp_path):
    run = make("--silent", "gpu", f"VENV={tmp_path}/venv", path=commands(0, 4))
    assert run.returncode != 0 and run.stderr.startswith("make gpu needs an NVIDIA GPU, and nvidia-smi lists none")
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(("visible", "processes"), [("3", 1), ("0,2,5", 3), ("", 2), ("-1", 2), ("0,1,-1,2", 2)])
def test_make_train_leaves_hidden_gpus_alone(commands, monkeypatch, visible, processes):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    run = make("--dry-run", "train", path=commands(8, 96))
    assert f"--nproc-per-node={processes} " in run.stdout
    assert "--nproc-per-node=2 " in make("--dry-run", "train", path=commands(0, 4)).stdout


@pytest.mark.parametrize(
    ("target", "chosen"), [("smoke", "-m smoke"), ("test", '-m "not weekly"'), ("test-weekly", "-m weekly")]
)
def test_each_lane_checks_style_first_and_chooses_by_marks(target, chosen):
    run = make("--dry-run", target).stdout
    assert run.index("ruff check .") < run.index("lint-imports") < run.index("-m pytest") < run.index(chosen)


def test_make_test_runs_what_it_is_told_to():
    assert make("--dry-run", "test", "ARGS=tests/test_ladder.py").stdout.rstrip().endswith(" tests/test_ladder.py")


def test_another_torch_is_tested_in_an_environment_of_its_own():
    run = make("--dry-run", "--always-make", "test-torch", "TORCH_VERSION=2.15.0").stdout
    assert ".venv-torch-2.15.0/bin/python -m pytest" in run and "requirements/torch" not in run
    assert run.index("requirements/course.txt") < run.index("install torch==2.15.0"), "torch may need older ones"
    refused = make("test-torch")
    assert refused.returncode != 0 and refused.stderr.startswith("say which: make test-torch TORCH_VERSION=")


def test_an_old_or_missing_python_gives_one_line(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.10" && exit 0\nexit 1\n')
    old.chmod(0o755)
    for python, problem in ((old, "Python 3.8.10"), (tmp_path / "none", "not found")):
        run = make("--silent", "test", f"PYTHON={python}", f"VENV={tmp_path}/venv")
        assert run.returncode != 0
        first, *rest = run.stderr.splitlines()
        assert "The course needs Python 3.11 or newer" in first and problem in first
        assert all(line.startswith("make") for line in rest)
        assert not (tmp_path / "venv").exists()
