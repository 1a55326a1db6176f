"""Python processes that are up and gone sooner: what the launcher adds to the environment of torchrun and its ranks."""

import os


def python_path() -> str:
    """PYTHONPATH with this folder first, so that Python finds the sitecustomize.py in it as it starts."""
    folder, before = os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")
    return folder if not before else f"{folder}{os.pathsep}{before}"
