"""How Python starts and ends in the processes of the launcher: sooner, and without an abort (see sitecustomize.py)."""

import os


def python_path() -> str:
    """PYTHONPATH with this folder first, so that Python finds the sitecustomize.py in it as it starts."""
    folder, before = os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")
    return folder if not before else f"{folder}{os.pathsep}{before}"
