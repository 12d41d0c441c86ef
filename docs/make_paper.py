"""The theory pages as one PDF, from the same sources as the site: docs/_build/theory.pdf.

python docs/make_paper.py
"""

import re
from pathlib import Path

import pypandoc
import typst

DOCS = Path(__file__).parent
PAGES = (
    "theory",
    "theory_trees",
    "optimal_verifier",
    "theory_lossy",
    "papers",
)
PAPER = DOCS / "_build" / "theory.pdf"
STYLE = """
#set page(paper: "a4", margin: 2.2cm, numbering: "1")
#set text(size: 10pt)
#set par(justify: true)
#set heading(numbering: "1.1")
#set document(title: "Multi-draft speculative decoding: theory")
#set table(stroke: 0.4pt + luma(180))
#show table: set text(size: 8pt)
#show table: set par(justify: false)
#show table: set align(left)
#show raw.where(block: true): set text(size: 8pt)
#let horizontalrule = line(length: 100%)
#align(center, text(17pt)[Multi-draft speculative decoding: theory])
#align(center)[The documentation of otmd, which runs every line of code printed here]
#outline(depth: 2)
"""


def anchor(heading: str) -> str:
    """The place of a heading within the PDF, as the site's links name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page_text(name: str) -> str:
    """The page with links that work inside one document; links to other pages keep their words."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8").replace(r"$\square$", "□")
    # The navigation of the site.
    text = re.sub(r"```\{toctree\}.*?```", "", text, flags=re.DOTALL)

    def link(found: re.Match[str]) -> str:
        words, page, place = found.groups()
        if page and page not in PAGES:
            return words
        return f"[{words}](#{page or name}{'--' + place if place else ''})"

    text = re.sub(r"\[([^\]]+)\]\((?:(\w+)\.md)?(?:#([\w-]+))?\)", link, text)
    text = re.sub(r"\[([^\]]+)\]\((?:howto|reference)/[^)]*\)", r"\1", text)

    def labelled(found: re.Match[str]) -> str:
        marks, heading = found.groups()
        place = name if marks == "#" else f"{name}--{anchor(heading)}"
        return f"{marks} {heading} {{#{place}}}"

    return re.sub(r"^(#{1,3}) (.+)$", labelled, text, flags=re.MULTILINE)


def main() -> None:
    """Write the PDF."""
    source = "\n\n".join(page_text(name) for name in PAGES)
    # Columns of tables take the width of their text where no line of the source is too long.
    form = {"format": "markdown-smart-implicit_figures", "extra_args": ["--columns=100000"]}
    body = pypandoc.convert_text(source, "typst", **form)
    folder = PAPER.parent
    folder.mkdir(parents=True, exist_ok=True)
    typ = PAPER.with_suffix(".typ")
    typ.write_text(STYLE + body.replace('image("images/', 'image("/images/'), encoding="utf-8")
    typst.compile(typ, output=PAPER, root=DOCS)
    print(PAPER)


if __name__ == "__main__":
    main()
