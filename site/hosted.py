"""Links that open a notebook where it can be run: on each page of one, once pyproject.toml names the repository."""

import re
from pathlib import Path

from sphinx.application import Sphinx

from ddp_course.authoring.setup_cell import repository

ROOT = Path(__file__).parents[1]
FOLDERS = "notebooks", "exercises"
BRANCH = "main"  # from which .github/workflows/site.yml publishes


def hosted_links(address: str | None, page: str) -> str:
    """HTML; "" for a page that is no notebook, or while no address on GitHub is known, from which both hosts open."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", address or "")
    if not match or Path(page).parent.name not in FOLDERS or not (ROOT / f"{page}.ipynb").exists():
        return ""
    file = f"{match[1]}/blob/{BRANCH}/{page}.ipynb"
    links = {
        "Open in Colab": f"https://colab.research.google.com/github/{file}",
        "Open in Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
    }
    return (
        '<p class="hosted-links">' + " · ".join(f'<a href="{url}">{text}</a>' for text, url in links.items()) + "</p>"
    )


def add_links(app: Sphinx, page: str, template: str, context: dict, document) -> None:
    """Below the title."""
    if document:
        context["body"] = context["body"].replace("</h1>", f"</h1>{hosted_links(repository(ROOT), page)}", 1)


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", add_links)
    return {"parallel_read_safe": True}
