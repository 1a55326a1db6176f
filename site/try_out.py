"""On a notebook's page, links to the pages with a calculator that name this notebook."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from sphinx.application import Sphinx

PAGES = Path(__file__).parent


@cache
def pages_by_notebook() -> dict[str, dict[str, str]]:
    """{stem of the notebook: {stem of the page: its title}}"""
    pages = defaultdict(dict)
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text()
        for notebook in re.findall(r"\.\./notebooks/(\w+)\.ipynb", text if "{{ calculator }}" in text else ""):
            pages[notebook][path.stem] = text.splitlines()[0].removeprefix("# ")
    return pages


def add_links(app: Sphinx, page: str, template: str, context: dict, document) -> None:
    """Add the links below the title."""
    folder, _, name = page.partition("/")
    pages = pages_by_notebook().get(name, {}) if folder == "notebooks" and document else {}
    links = " · ".join(f'<a href="../site/{path}.html">{title}</a>' for path, title in pages.items())
    if links:
        context["body"] = context["body"].replace("</h1>", f"</h1><p>To try out: {links}</p>", 1)


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", add_links)
    return {"parallel_read_safe": True}
