"""The first pages: the cheat sheet's script runs, links resolve, terms lead to notebooks, notebook 00 trains early."""

import re

import pytest
from training_runs import ROOT

from ddp_course.authoring.notebook_run import output_texts, read_notebook
from ddp_course.authoring.setup_cell import lesson_cells
from ddp_course.grader.exercises import names
from ddp_course.launcher import torchrun

NAMES = ("cheat_sheet.md", "glossary.md", "symptoms.md", "library_names.md")
PAGES = {name: (ROOT / "notebooks" / name).read_text(encoding="utf-8") for name in NAMES}
LINK = re.compile(r"\]\(([^)#\s]+)")
ROW = re.compile(r"^\| ([^|]+) \|.*\]\((\w+\.ipynb)\) \|$", re.MULTILINE)
[SCRIPT] = re.findall(r"```python\n(.*?)```", PAGES["cheat_sheet.md"], re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page):
    targets = [target for target in LINK.findall(PAGES[page]) if not target.startswith("http")]
    assert targets and [target for target in targets if not (ROOT / "notebooks" / target).exists()] == []


@pytest.mark.usefixtures("warm_launches")
def test_the_script_has_the_same_losses_on_one_two_and_three_processes(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    losses = []
    for nproc in (1, 2, 3):  # 64 rows are shared as 22, 21 and 21
        run = torchrun(tmp_path / "train.py", nproc=nproc, quiet=True, timeout=600)
        losses.append([float(line.split()[-1]) for line in run.lines[0] if line.startswith("step ")])
    single, *distributed = losses
    assert len(single) == 20 and single[-1] < 0.9 * single[0]
    for losses_of_several in distributed:
        assert losses_of_several == pytest.approx(single, abs=2e-6)  # six decimals, in another order of additions


def text_of_notebook(notebook):
    """The normalized text of all cells and outputs of a notebook."""
    nb = read_notebook(ROOT / "notebooks" / notebook)
    texts = [cell.source for cell in nb.cells]
    texts += [text for cell in nb.cells if cell.cell_type == "code" for text in output_texts(cell)]
    return normalized(" ".join(texts))


def normalized(text):
    """The text in lower case and with spaces for - and _, so that WORLD_SIZE and world size are the same."""
    return " ".join(re.sub("[-_]", " ", text.lower()).split())


@pytest.mark.parametrize("notebook", sorted({notebook for page in PAGES.values() for _, notebook in ROW.findall(page)}))
def test_a_notebook_has_the_words_and_the_errors_that_lead_to_it(notebook):
    text_and_outputs = text_of_notebook(notebook)
    terms = [
        word for term, target in ROW.findall(PAGES["glossary.md"]) if target == notebook for word in term.split(", ")
    ]
    errors = [
        text
        for page in ("cheat_sheet.md", "symptoms.md")
        for row, target in ROW.findall(PAGES[page])
        if target == notebook
        for text in re.findall("`([^`]+)`", row)
    ]
    assert [word for word in terms + errors if normalized(word) not in text_and_outputs] == []


# ---- the names of other libraries --------------------------------------------------------------------------------

OURS, *LIBRARIES, PAPERS = ("this course", "torchtitan", "Megatron-LM", "DeepSpeed; Accelerate", "papers")
NAME_LINK = re.compile(r"\[[^\]]+\]\[([\w-]+)\]")
NAME_TARGET = re.compile(r"^\[([\w-]+)\]: (https://github\.com/[\w-]+/[\w-]+/blob/[0-9a-f]{40}/\S+)$", re.MULTILINE)


def name_faults(page):
    """The faults of the table of names, one sentence each."""
    header, _, *rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    ours = [PAGES["glossary.md"], *(path.read_text(encoding="utf-8") for path in ROOT.glob("ddp_course/**/*.py"))]
    own_words, targets = normalized(" ".join(ours)), dict(NAME_TARGET.findall(page))
    if header != [OURS, *LIBRARIES, PAPERS] or not rows:
        yield f"the columns are {header}"
    for word, *cells in rows:
        if len(cells) != len(header) - 1 or not all(cells):
            yield f"the row of {word} has an empty cell"
        if not any(NAME_LINK.search(cell) for cell in cells[:-1]):
            yield f"no library has a name for {word}"
        yield from (f"{term} is no word of ours" for term in word.split(", ") if normalized(term) not in own_words)
        yield from (
            f"{cell} links to no file" for cell in cells[:-1] if cell.startswith("[") and not NAME_LINK.match(cell)
        )
    yield from (f"no file is given for [{name}]" for name in set(NAME_LINK.findall(page)) - targets.keys())
    yield from (f"nothing links to [{name}]" for name in targets.keys() - set(NAME_LINK.findall(page)))
    commits = {tuple(target.split("/")[3:7]) for target in targets.values()}
    if len(commits) != len({commit[:2] for commit in commits}):
        yield "the files of a library are of several commits"


def test_each_term_of_ours_has_a_librarys_name_and_its_file():
    assert list(name_faults(PAGES["library_names.md"])) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("| clipping |", "| trimming |", "trimming is no word of ours"),
        ("[`max_norm`][t-config] |", " |", "the row of clipping has an empty cell"),
        ("[`get_num_microbatches`][m-batches]", "`get_num_microbatches`", "nothing links to [m-batches]"),
        ("[`get_num_microbatches`][m-batches]", "[`get_num_microbatches`][m-batch]", "no file is given for [m-batch]"),
        ("[`steps`][t-config]", "[`steps`](https://example.org)", "[`steps`](https://example.org) links to no file"),
        ("blob/b", "blob/a", "the files of a library are of several commits"),
    ],
)
def test_a_wrong_row_of_names_is_reported(old, new, fault):
    assert fault in list(name_faults(PAGES["library_names.md"].replace(old, new, 1)))


ADVANCED = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.name >= "17"]


@pytest.mark.parametrize("path", ADVANCED, ids=lambda path: path.stem)
def test_an_advanced_notebook_names_a_library_for_its_method(path):
    """One of its paragraphs with "at work" links to a library, or to the table of the libraries' names."""
    text = "\n\n".join(cell.source for cell in read_notebook(path).cells if cell.cell_type == "markdown")
    paragraphs = re.findall(
        r"^(?:## [\d.a-z]+ [^\n]*at work[^\n]*\n\n)?[^\n]+(?:\n[^\n]+)*", text, re.MULTILINE | re.IGNORECASE
    )
    about_work = [part for part in paragraphs if re.search(r"\bat work\b", part, re.IGNORECASE)]
    assert any("](https://" in part or "](library_names.md)" in part for part in about_work)


def test_ddp_trains_within_ten_cells_and_500_words():
    cells = lesson_cells(read_notebook(ROOT / "notebooks" / "00_your_lab.ipynb"))  # all but the setup cell
    [number, *_] = [number for number, cell in enumerate(cells) if 'torchrun("scripts/00_ddp.py"' in cell.source]
    text = " ".join(cell.source for cell in cells[:number] if cell.cell_type == "markdown")
    assert number < 10 and len(text.split()) < 500
    [shown] = output_texts(cells[number])
    for nproc in (1, 2):
        assert f"torchrun --standalone --nproc-per-node={nproc} scripts/00_ddp.py\n[rank 0] step 1  loss" in shown


@pytest.mark.parametrize("notebook", ["01_one_process", "03_data_parallel_by_hand", "04_ddp"])
def test_a_training_is_shown_with_its_command_and_every_tenth_step(notebook):
    cells = read_notebook(ROOT / "notebooks" / f"{notebook}.ipynb").cells
    shown = "".join(text for cell in cells if cell.cell_type == "code" for text in output_texts(cell))
    for nproc in [1] if notebook == "01_one_process" else [1, 2]:
        assert re.search(
            rf"torchrun --standalone --nproc-per-node={nproc} scripts/train_.*\n"
            r"(\[rank 0\] step (1|10|20)  loss .*\n){3}",
            shown,
        )


def test_lessons_need_nothing_of_the_authors():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert "ddp_course.authoring" not in path.read_text(encoding="utf-8"), path.name


def test_the_plans_for_a_class_add_up_the_reading_times_of_the_notebooks():
    text = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    times = {}
    for path in ROOT.glob("notebooks/*.ipynb"):
        head = "".join(cell.source for cell in read_notebook(path).cells[:3])
        times[path.name.partition("_")[0]] = int(re.search(r"Reading time\*\* (\d+)", head)[1])
    weeks = re.findall(r"^\| ([\d to]+) \| ([^|]+) \| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    assert len(weeks) == 14
    total = 0
    for week, notebooks, minutes, exercises in weeks:
        expected = total if notebooks == "as above" else sum(times[name] for name in notebooks.split(", "))
        assert int(minutes) == expected, f"week {week}"
        total += 0 if notebooks == "as above" else expected
        assert exercises == "as above" or set(exercises.split(", ")) <= set(names())
