"""The files of the built site's calculators: Pyodide, pinned, and a zip of the modules that it runs."""

import base64
import hashlib
import json
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

from sampler_table import recorded_shares

ROOT = Path(__file__).parents[1]
PYODIDE = "314.0.7"
INTEGRITY = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="  # its sha512
NEEDED = "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"
MODULES = {
    ROOT: [
        "ddp_course/__init__.py",
        "ddp_course/base/*.py",
        "ddp_course/plan/*.py",
        "ddp_course/lab/__init__.py",
        "ddp_course/lab/pipeline_order.py",
        "ddp_course/lab/ring_order.py",
    ],
    ROOT / "doctor": ["ddp_doctor/__init__.py", "ddp_doctor/explain/*.py"],
    ROOT / "site": ["bucket_queue.py", "in_browser.py", "pictures.py", "sampler_table.py", "teaching.py"],
}


def pack_modules(path: Path) -> None:
    """Write the zip of MODULES and of the recorded shares."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for folder, patterns in MODULES.items():
            for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
                packed.write(file, file.relative_to(folder))
        packed.writestr("sampler.json", json.dumps(recorded_shares()))


def fetch_pyodide() -> Path:
    """Download the package from npm, once: it is kept in build/. Raises OSError unless its sha512 is INTEGRITY."""
    package = ROOT / f"build/pyodide-{PYODIDE}.tgz"
    if not package.exists():
        package.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=package.parent) as folder:
            command = ["npm", "pack", f"pyodide@{PYODIDE}", "--silent", "--pack-destination", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # npm prints its errors to stderr
            (Path(folder) / package.name).rename(package)
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if digest != INTEGRITY:
        raise OSError(f"{package} is not the pinned one: its sha512 is {digest}, not {INTEGRITY}; delete it")
    return package


def add_pyodide(folder: Path) -> None:
    """Extract the files that a page needs into `folder`."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(fetch_pyodide()) as package:
        for name in NEEDED:
            (folder / name).write_bytes(package.extractfile(f"package/{name}").read())
