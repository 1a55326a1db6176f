"""Colab and Kaggle open a notebook from its page once the repository has an address, and not before."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
ADDRESS = "https://github.com/somebody/ddp-course"
pytest.importorskip("sphinx", reason="make site installs what builds it")


@pytest.fixture
def hosted(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "site")
    return importlib.import_module("hosted")


@pytest.mark.parametrize("address", [ADDRESS, f"{ADDRESS}.git", f"{ADDRESS}/"])
def test_both_open_the_file_of_the_page(hosted, address):
    links = hosted.hosted_links(address, "notebooks/04_ddp")
    assert (
        'href="https://colab.research.google.com/github/somebody/ddp-course/blob/main/notebooks/04_ddp.ipynb"' in links
    )
    assert f"https://kaggle.com/kernels/welcome?src={ADDRESS}/blob/main/notebooks/04_ddp.ipynb" in links


@pytest.mark.parametrize(
    ("address", "page"),
    [
        (None, "notebooks/04_ddp"),
        ("https://example.org/ddp-course", "notebooks/04_ddp"),
        (ADDRESS, "notebooks/glossary"),
        (ADDRESS, "solutions/04_ddp"),
        (ADDRESS, "site/plan"),
    ],
)
def test_no_link_that_would_lead_nowhere(hosted, address, page):
    assert hosted.hosted_links(address, page) == ""


def test_they_stand_below_the_title(hosted, monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{ADDRESS}"\n')
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/04_ddp.ipynb").touch()
    monkeypatch.setattr(hosted, "ROOT", tmp_path)
    context = {"body": "<h1>DDP</h1><p>text</p>"}
    hosted.add_links(None, "notebooks/04_ddp", "page.html", context, SimpleNamespace())
    assert context["body"].startswith('<h1>DDP</h1><p class="hosted-links"><a href="https://colab.')
