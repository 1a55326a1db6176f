"""make site: each notebook has its page, links within resolve, nothing is fetched, nothing scrolls sideways."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.weekly, pytest.mark.skipif(not find_spec("furo"), reason="make site installs what builds it")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "site", ".", built]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr  # also where a link leads nowhere
    return built


def pages(site):
    folders = "site", "notebooks", "exercises", "solutions"
    return [path for folder in folders for path in site.glob(f"{folder}/*.html")]


def test_each_notebook_has_a_page_that_the_first_page_leads_to(site):
    first = (site / "site/index.html").read_text()
    for path in [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*.ipynb"), *ROOT.glob("solutions/*.ipynb")]:
        page = path.relative_to(ROOT).with_suffix(".html")
        assert (site / page).exists() and f"../{page}" in first


def test_no_page_fetches_anything(site):
    fetched = re.compile(
        r"<(?:script|img|iframe|link (?:[^>]*rel=\"stylesheet\"))[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*"
    )
    assert [(page.name, found[0]) for page in pages(site) if (found := fetched.findall(page.read_text()))] == []


def test_each_figure_has_a_text(site):
    images = [(page.name, image) for page in pages(site) for image in re.findall(r"<img [^>]*>", page.read_text())]
    assert len(images) > 100
    assert [image for image in images if not re.search(r'alt="[^"]+', image[1])] == []


def test_formulas_are_drawn_without_javascript(site):
    assert "<math" in (site / "notebooks/23_pipeline.html").read_text()


def test_it_is_small(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 150e6


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize("page", ["site/index", "notebooks/00_your_lab", "notebooks/symptoms", "exercises/04_ddp"])
def test_on_a_phone_nothing_scrolls_sideways(site, tmp_path, page):
    """The page itself says how wide it is, in a frame as wide as a phone."""
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id="page" src="file://{site}/{page}.html" width="390" height="800"></iframe><p id="said"></p><script>'
        "page.onload = () => { const all = page.contentDocument.documentElement; "
        "said.textContent = `wide ${all.scrollWidth} of ${all.clientWidth}` }</script>"
    )
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    command = [
        "chromium",
        *options,
        "--virtual-time-budget=20000",
        f"--user-data-dir={tmp_path}/profile",
        f"file://{frame}",
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
    wide, window = map(int, re.search(r"wide (\d+) of (\d+)", dom).groups())
    assert wide <= window
