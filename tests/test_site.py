"""make site: each notebook has its page, links within resolve, nothing is fetched, nothing scrolls sideways.

The calculators answer as the commands do.
"""

import functools
import html
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

import pytest
from browser import open_browser

ROOT = Path(__file__).parents[1]
REPORT = "document.querySelector('.calculator-report')"
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


@pytest.mark.parametrize(("page", "notebook"), [("ring", "02b"), ("sampler", "05"), ("buckets", "14"), ("zero", "17")])
def test_a_notebook_leads_to_the_page_that_shows_its_subject_move(site, page, notebook):
    [path] = site.glob(f"notebooks/{notebook}_*.html")
    assert re.search(rf'<p>To try out: .*<a href="\.\./site/{page}\.html">', path.read_text())
    assert (site / f"site/{page}.html").exists()


def test_no_page_fetches_anything(site):
    fetched = re.compile(
        r"<(?:script|img|iframe|link (?:[^>]*rel=\"stylesheet\"))[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*"
    )
    assert [(page.name, fetches[0]) for page in pages(site) if (fetches := fetched.findall(page.read_text()))] == []


def test_each_figure_has_a_text(site):
    images = [(page.name, image) for page in pages(site) for image in re.findall(r"<img [^>]*>", page.read_text())]
    assert len(images) > 100
    assert [image for image in images if not re.search(r'alt="[^"]+', image[1])] == []


def test_a_table_that_a_cell_shows_is_a_table(site):
    as_text = re.compile(r"\|\s*(?:-{3}|—)\s*\|")  # the line below a Markdown table's head
    assert [
        page.name for page in pages(site) if page.parent.name == "notebooks" and as_text.search(page.read_text())
    ] == []
    assert re.search(
        r"<table.*?gradient off by.*?</table>", (site / "notebooks/27_fine_tuning.html").read_text(), re.DOTALL
    )


def test_formulas_are_drawn_without_javascript(site):
    assert "<math" in (site / "notebooks/23_pipeline.html").read_text()


@pytest.mark.parametrize("name", ["plan", "predict"])
def test_without_javascript_a_page_shows_what_the_command_prints_for_its_first_settings(site, name):
    page = (site / f"site/{name}.html").read_text()
    without = page.partition("<noscript>\n")[2].partition("</noscript>")[0]
    flags, printed = re.search(r"<code>(.*?)</code>.*?<pre[^>]*>(.*?)</pre>", without, re.DOTALL).groups()
    command = [sys.executable, "-m", f"ddp_course.{name}", *flags.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert html.unescape(printed) == run.stdout


@pytest.mark.parametrize("name", ["buckets", "pipeline", "ring", "sampler", "zero"])
def test_without_javascript_a_page_of_no_command_shows_its_first_answer(site, name):
    without = (site / f"site/{name}.html").read_text().partition("<noscript>\n")[2].partition("</noscript>")[0]
    assert re.search(r"<pre[^>]*>\w.+\n", without) and "error: " not in without


def test_it_is_small(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 150e6


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(SimpleHTTPRequestHandler, directory=site)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def browser(tmp_path):
    if not shutil.which("chromium"):
        pytest.skip("needs chromium")
    with open_browser(tmp_path / "browser") as browser:
        yield browser


def test_on_a_phone_no_page_scrolls_sideways_has_an_error_or_misses_a_question(site, address, browser):
    wide, uncounted = {}, []
    for page in pages(site):
        browser.open(f"{address}/{page.relative_to(site)}", width=390)
        width = browser.value("document.documentElement.scrollWidth")
        wide |= {page.name: width} if width > 390 else {}
        notebook = ROOT / page.relative_to(site).with_suffix(".ipynb")
        questions = notebook.read_text().count("**Question.**") if notebook.exists() else 0
        counted = browser.value("document.querySelector('.quiz-counter')?.textContent ?? 'of 0 questions'")
        uncounted += [] if f"of {questions} questions" in counted else [page.name]
    assert wide == {} and uncounted == [] and browser.errors == []


def answer_of_the_page(browser):
    browser.wait(f"{REPORT}.ariaBusy == 'false' && {REPORT}.textContent")
    return browser.value(f"{REPORT}.textContent")


def answer_of_the_command(browser):
    """The output of the command that the page shows for a terminal."""
    command = shlex.split(browser.value("document.querySelector('.calculator-command').textContent"))
    run = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    return run.stdout + run.stderr


@pytest.mark.parametrize(
    "settings",
    [
        "plan.html",
        "plan.html#params=70B&gpus=256&memory=80GB&link=200Gb&gated=on&mlp=28672&width=8192&layers=80&heads=64",
        "plan.html#params=70B&gpus=8&memory=16GB&link=fast%20'one'",
        "plan.html#params=-3B&gpus=7&memory=80GB&link=200Gb",
        "predict.html",
        "predict.html#model=1.3B&gpus=24&link=25Gb&gpu=a100&mfu=0.4-0.5&accumulation=4&tokens=300e9&price=2",
        "predict.html#model=llama3-8b&link=400Gb",
    ],
)
def test_a_calculator_prints_what_the_command_prints(address, browser, settings):
    browser.open(f"{address}/site/{settings}")
    assert answer_of_the_page(browser) == answer_of_the_command(browser)
    drawn = browser.value("document.querySelectorAll('.calculator-pictures rect').length")
    assert (drawn == 0) == browser.value(f"{REPORT}.textContent.startsWith('error: ')")
    assert browser.errors == []


@pytest.mark.parametrize("page", ["zero", "pipeline", "ring", "sampler", "buckets"])
def test_a_page_redraws_when_a_slider_moves(address, browser, page):
    browser.open(f"{address}/site/{page}.html")
    first = answer_of_the_page(browser)
    slide(browser, 1)
    browser.wait(f"{REPORT}.textContent != {json.dumps(first)}")
    assert browser.value("document.querySelectorAll('.calculator-pictures rect').length") and browser.errors == []


def test_play_moves_a_ring_from_its_first_step_to_its_last(address, browser):
    """More steps than the ring has are its last one."""
    button = "document.querySelector('[data-play]')"
    browser.open(f"{address}/site/ring.html#ranks=2&step=9")
    assert answer_of_the_page(browser).startswith("2 of 2 steps done")
    browser.wait("location.hash == '#ranks=2&step=2'")
    clicked = browser.value(f"{button}.click(), {button}.textContent + location.hash")  # a second later it moves
    assert clicked == "Pause#ranks=2&step=0"
    browser.wait(f"location.hash == '#ranks=2&step=2' && {button}.textContent == 'Play'")
    assert answer_of_the_page(browser).endswith("2, 2\n") and browser.errors == []


def test_the_first_picture_moves_unless_paused_or_unwanted(address, browser):
    running = "document.getAnimations().filter(each => each.playState == 'running').length"
    browser.open(f"{address}/site/index.html")
    assert browser.value(running) > 10
    browser.value("document.querySelector('.first-picture input').click()")
    assert browser.value(running) == 0
    browser.ask_for_less_motion()
    browser.open(f"{address}/site/index.html")
    assert browser.value("document.getAnimations().length") == 0
    faint = "[...document.querySelectorAll('.first-picture svg *')].filter(e => getComputedStyle(e).opacity < 1).length"
    assert browser.value(faint) == 0
    text = browser.value("document.querySelector('.first-picture svg[role=img]').getAttribute('aria-label')")
    assert "one process" in text and "with two" in text and browser.errors == []


COUNTER = "document.querySelector('.quiz-counter').textContent"


def test_a_choice_says_if_it_is_right_and_the_first_one_counts(address, browser):
    """The second of the three choices of notebook 04's first question is right."""
    questions = (ROOT / "notebooks/04_ddp.ipynb").read_text().count("**Question.**")
    page = f"{address}/notebooks/04_ddp.html"
    browser.open(page)
    assert browser.value(COUNTER) == f"0 of {questions} questions answered, 0 right at once "
    assert choose(browser, 0).endswith("✗ wrong") and choose(browser, 1).endswith("✓ right")
    assert browser.value(COUNTER) == f"1 of {questions} questions answered, 0 right at once start again"
    browser.open(page)
    assert "1 of" in browser.value(COUNTER) and browser.value("document.querySelectorAll('.quiz-mark').length") == 1
    browser.open(f"{address}/notebooks/05_sharding_data.html")
    assert browser.value(COUNTER).startswith("0 of")
    browser.open(page)
    browser.value("document.querySelector('.quiz-counter button').click()")
    assert browser.value(COUNTER).startswith("0 of") and not browser.value("!!document.querySelector('.quiz-mark')")
    choose(browser, 1)
    assert "1 right at once" in browser.value(COUNTER) and browser.errors == []


def choose(browser, number):
    """Opens a choice of the page's first question."""
    choice = f"document.querySelectorAll('article p + details, article p + details ~ details')[{number}].firstChild"
    browser.value(f"{choice}.click()")
    return browser.value(f"{choice}.textContent")


def test_search_finds_ten_messages_of_the_symptoms(address, browser):
    messages = re.findall(r"^### `(.+)`", (ROOT / "notebooks/symptoms.md").read_text(), re.MULTILINE)[::10][:10]
    missing = []
    for message in messages:
        words = " ".join(re.findall(r"[A-Za-z_]{3,}", message))
        browser.open(f"{address}/search.html?{urlencode({'q': words})}")
        browser.wait("/finished|did not match/.test(document.querySelector('#search-results').textContent)")
        leads = "[...document.querySelectorAll('#search-results a')].some(link => link.href.includes('symptoms'))"
        missing += [] if browser.value(leads) else [message]
    assert len(messages) == 10 and missing == []


def slide(browser, steps):
    browser.value(
        f"(slider => {{ slider.value = Number(slider.value) + {steps};"
        "slider.dispatchEvent(new Event('input', { bubbles: true })) })"
        "(document.querySelectorAll('[data-flag]')[1])"
    )


def test_the_address_holds_what_a_slider_sets(address, browser):
    browser.open(f"{address}/site/plan.html")
    first = answer_of_the_page(browser)
    slide(browser, -1)
    moved, url = answer_of_the_page(browser), browser.value("location.href")
    assert "gpus=32" in url and moved != first and moved == answer_of_the_command(browser)
    browser.open(url)
    assert answer_of_the_page(browser) == moved


@pytest.mark.parametrize(("name", "chosen"), [("nccl_rank_7_is_behind.log", False), ("progress_bars.log", True)])
def test_explain_prints_what_the_command_prints(address, browser, name, chosen):
    """progress_bars.log has carriage returns, which a file keeps and a text field does not."""
    log = ROOT / "doctor/tests/logs" / name
    browser.open(f"{address}/site/explain.html")
    text = json.dumps(log.read_bytes().decode())
    if chosen:
        browser.value(
            f"(() => {{ const files = new DataTransfer(); files.items.add(new File([{text}], {name!r}));"
            "const field = document.querySelector('[type=file]'); field.files = files.files;"
            "field.dispatchEvent(new Event('change', { bubbles: true })) })()"
        )
    else:
        browser.value(
            f"(field => {{ field.value = {text}; field.dispatchEvent(new Event('input', {{ bubbles: true }})) }})"
            "(document.querySelector('textarea'))"
        )
    command = [sys.executable, "-m", "ddp_doctor", "explain", name if chosen else "-"]
    run = subprocess.run(command, cwd=log.parent, stdin=log.open(), capture_output=True, text=True)
    assert answer_of_the_page(browser) == run.stdout and "VERDICT" in run.stdout
    assert browser.errors == []
