"""Pin anew what `make` installs: every package to one version and to the hashes of its files, for pip.

    make pins        # runs this with uv in an environment of its own

torch-cpu.txt  the build of torch without CUDA, from torch's own index, for Linux
torch.txt      PyPI's build of torch, with what it needs beside it on Linux: CUDA
course.txt     everything else that .[dev] needs
peers.txt      what they can compare with on a GPU
wandb.txt      what --wandb needs; nothing installs it by itself
site.txt       what make site needs

The versions that stand here stay, unless pyproject.toml excludes them; delete a block, or a file, to renew it.
torch-cpu.txt is kept with the version of torch, so only a new version of torch asks its index.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WITHOUT_CUDA = "https://download.pytorch.org/whl/cpu"
HEADERS = {
    "torch-cpu": f"# PyTorch without CUDA, for Linux, from its own index alone.\n--index-url {WITHOUT_CUDA}\n",
    "torch": "# PyTorch as PyPI has it, and what that needs on Linux, where it comes with CUDA.\n",
    "course": "# Everything else that the course needs, with its tests and its authors' tools.\n",
    "peers": "# Kernels to compare with on a GPU; nothing installs them by itself.\n",
    "wandb": "# Weights & Biases, for --wandb; nothing installs it by itself.\n",
    "site": "# Sphinx and what else make site needs.\n",
}
EXTRAS = ("peers", "wandb", "site")  # each file holds what its extra needs beside the course


def blocks(text: str) -> dict[str, str]:
    """A requirements file as {name: its block, one for each environment that has a version of its own}."""
    block_by_name: dict[str, str] = {}
    for block in re.findall(r"^[A-Za-z0-9]\S*==.*(?:\n[ \t]+\S.*)*\n", text, re.MULTILINE):
        name = re.match(r"[A-Za-z0-9._-]+", block)[0]
        block_by_name[name] = block_by_name.get(name, "") + block
    return block_by_name


def versions(block_by_name: dict[str, str]) -> list[str]:
    """The blocks without their hashes: name==version, with the marker of the environment."""
    firsts = [line for block in block_by_name.values() for line in block.splitlines() if not line.startswith(" ")]
    return [line.removesuffix("\\").strip() for line in firsts]


def compiled(*arguments: str, text: str = "") -> dict[str, str]:
    """The file that uv makes of it: every package needed on any supported platform and Python, with hashes."""
    command = ["uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", *arguments]
    run = subprocess.run(command, cwd=HERE.parent, input=text, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return blocks(run.stdout)


def without_cuda(version: str, present: dict[str, str]) -> str:
    """The block of torch's build without CUDA: from `present`, or of a new version from torch's own index."""
    wanted = f"torch=={version}+cpu"
    if wanted not in versions(present):
        linux = ["--python-platform=x86_64-manylinux_2_28", "--no-deps"]
        present = compiled("-", *linux, f"--index-url={WITHOUT_CUDA}", text=f"{wanted}\n")
    return present["torch"]


def main() -> None:
    present = {name: file.read_text() if (file := HERE / f"{name}.txt").exists() else "" for name in HEADERS}
    kept = HERE / ".kept"
    lines = [line for name, text in present.items() if name != "torch-cpu" for line in versions(blocks(text))]
    kept.write_text("\n".join(lines))
    lowest = re.search(r'^requires-python = ">=(.+)"', (HERE.parent / "pyproject.toml").read_text(), re.MULTILINE)[1]
    common = ["pyproject.toml", "--universal", f"--python-version={lowest}", "--extra=dev"]
    constraint = f"--constraint={kept.relative_to(HERE.parent)}"
    whole = compiled(*common, *(f"--extra={extra}" for extra in EXTRAS), constraint)
    kept.write_text("\n".join(versions(whole)))
    course = compiled(*common, constraint)
    chosen = {extra: compiled(*common, f"--extra={extra}", constraint).keys() - course.keys() for extra in EXTRAS}
    kept.unlink()
    files: dict[str, list[str]] = {name: [] for name in HEADERS}
    for name, block in whole.items():
        if re.match("torch$|nvidia-|cuda-|triton$", name):
            files["torch"].append(block)
        elif name in course:
            files["course"].append(block)
        for extra, names in chosen.items():
            if name in names:
                files[extra].append(block)
    version = re.match(r"torch==([^\s\\]+)", whole["torch"])[1]
    files["torch-cpu"].append(without_cuda(version, blocks(present["torch-cpu"])))
    for name, contents in files.items():
        (HERE / f"{name}.txt").write_text(HEADERS[name] + "".join(contents))


if __name__ == "__main__":
    main()
