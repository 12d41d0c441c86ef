"""The project's promises: documented, pages that run as printed, one version, no machine paths."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import linecache
import operator
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
from numpy.typing import ArrayLike

import otmd
from otmd.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not {"_build", "generated"} & set(page.parts)
)
FENCE = re.compile(r"^```(\w+|\{code-cell\}.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# How a cell of a notebook is to be shown, in lines at its head.
CELL_OPTION = re.compile(r"^:.*$", re.MULTILINE)
NEEDS_MODEL = "<!-- test: model -->"
LARGE = 1_000_000


def code_blocks(text: str) -> list[tuple[str, int, str]]:
    """(language, line, code) of a page's fenced Python, cells of notebooks included."""
    return [
        (
            block[1] if block[1] == "pycon" else "python",
            text.count("\n", 0, block.start()) + 1,
            CELL_OPTION.sub("", block[2]),
        )
        for block in FENCE.finditer(text)
        if block[1] in {"python", "pycon"} or block[1].startswith("{code-cell}")
    ]


def run_page(text: str, name: str) -> None:
    """Run a page's blocks from top to bottom in one namespace; printed output must agree."""
    page = types.ModuleType("page")
    sys.modules["page"] = page
    parser = doctest.DocTestParser()
    for language, line, code in code_blocks(text):
        if language == "python":
            source = "\n" * line + code
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            exec(compile(source, name, "exec"), page.__dict__)
            continue
        report: list[str] = []
        example = parser.get_doctest(code, page.__dict__, name, name, line)
        example.globs = page.__dict__
        doctest.DocTestRunner(verbose=False).run(example, out=report.append, clear_globs=False)
        if report:
            pytest.fail("".join(report), pytrace=False)


QUICK_PAGES = {
    "README.md",
    "docs/tutorial.md",
    *(f"docs/howto/{name}.md" for name in ("measure_a_pair", "audit")),
}


def page_parameters() -> list:
    parameters = []
    for page in PAGES:
        name, text = page.relative_to(ROOT).as_posix(), page.read_text()
        marks = [pytest.mark.model] if NEEDS_MODEL in text else []
        if name not in QUICK_PAGES:
            marks.append(pytest.mark.slow)
        if code_blocks(text):
            parameters.append(pytest.param(page, id=name, marks=marks))
    return parameters


@pytest.mark.parametrize("page", page_parameters())
def test_code_on_pages_runs_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "docs" / "examples")
    # The file that engine authors copy.
    (tmp_path / "layers.py").symlink_to(ROOT / "otmd" / "tensors" / "layers.py")
    monkeypatch.syspath_prepend(tmp_path)
    run_page(page.read_text(), str(page.relative_to(ROOT)))


def test_code_on_pages_is_found_and_a_wrong_page_fails():
    assert {parameter.id for parameter in page_parameters()} > QUICK_PAGES
    wrong = "assert 1 + 1 == 3\n"
    for block in (
        "pycon\n>>> 1 + 1\n3\n",
        f"python\n{wrong}",
        f"{{code-cell}} a\n:b: c\n\n{wrong}",
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            run_page(f"```{block}```\n", "wrong.md")


def commands() -> list:
    """Every ``$ otmd …`` line of a console block, once."""
    lines = {
        line.removeprefix("$ ").split("#")[0].strip(): page
        for page in PAGES
        for block in FENCE.finditer(page.read_text())
        if block[1] == "console"
        for line in block[2].splitlines()
        if re.match(r"\$ (\S*/)?otmd ", line)
    }
    return [pytest.param(shlex.split(line)[1:], id=f"{page.stem}: {line}") for line, page in lines.items()]


@pytest.mark.parametrize("command", commands())
def test_commands_on_pages_exist(command, capsys):
    assert main([command[0], "--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    used = {word for word in command if word.startswith("--")}
    assert used - known == set()
    if command[0] == "solve":
        assert main(command) == 0


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: *\"?([^\"\n]+)", (ROOT / "CITATION.cff").read_text(), re.M)
    newest = re.search(r"^## \[?([0-9][^\s\]]*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert cited is not None
    assert newest is not None
    assert otmd.__version__ == project["version"] == cited[1].strip() == newest[1]


def tracked_files() -> dict[str, str]:
    """Text of every file of the project that git has, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout: which files belong to the project is not known")
    texts = {}
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.stat().st_size < LARGE:
            content = path.read_bytes()
            if b"\0" not in content:
                texts[name] = content.decode()
    return texts


def test_torch_is_pinned_in_one_place():
    pinned = re.compile(r"\btorch *(==|~=|===) *[0-9]")
    places = [name for name, text in tracked_files().items() if pinned.search(text)]
    assert places == ["constraints.txt"]


# Written so that this file does not match itself.
FOREIGN = re.compile(r"(?<![\w.~$}])/(work|root|home|Users|opt|mnt|tmp)/\w|\.\./shared\b|\bDESIGN\.md\b")


def foreign_words(texts: dict[str, str]) -> list[str]:
    return [
        f"{name}: {found[0]}"
        for name, text in texts.items()
        if name != Path(__file__).relative_to(ROOT).as_posix() and (found := FOREIGN.search(text))
    ]


def test_no_file_names_a_machine():
    assert foreign_words(tracked_files()) == []
    assert foreign_words({"a.py": "open('/home/someone/x')"}) == ["a.py: /home/s"]


ODD_WORDS = re.compile(
    r"(?<![a-z])((un)?likeliest|chances?|beside|wanted|output law|other half)(?![a-z])", re.I
)
ODD_PROSE = re.compile(r"\bgot\b")
ODD_NAMES = {
    "own", "found", "told", "known", "each", "one", "other", "whole", "here", "places", "taken",
}  # fmt: skip
ODD_STARTS = re.compile(r"(What|How|Which)\b")


def odd_words(source: str) -> list[str]:
    """Words, names of variables and beginnings of docstrings that CONTRIBUTING's table replaces."""
    words = [match[0] for match in ODD_WORDS.finditer(source)]
    for comment in re.findall(r"(?:^| )# .*$", source, re.M):
        words += ODD_PROSE.findall(comment)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            words += {node.id} & ODD_NAMES
        elif isinstance(node, ast.arg):
            words += {node.arg} & ODD_NAMES
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            docstring = ast.get_docstring(node) or ""
            words += ODD_PROSE.findall(docstring)
            words += [match[0] for match in [ODD_STARTS.match(docstring)] if match]
    return words


# Folders whose words follow the table of CONTRIBUTING.
@pytest.mark.parametrize("path", ["otmd", "experiments", "paper_figures", "tests/experiments"])
def test_words_are_those_of_the_field(path):
    odd = {
        file.relative_to(ROOT).as_posix(): odd_words(file.read_text()) for file in (ROOT / path).rglob("*.py")
    }
    assert {name: words for name, words in odd.items() if words} == {}


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("# Drafts drawn by chance.\n", "chance"),
        ("LABEL = 'the likeliest tokens'\n", "likeliest"),
        ("drafts_beside_others = 1\n", "beside"),
        ("raise ValueError(f'n: got {n}, wanted 2')\n", "wanted"),
        ('def f():\n    """The numbers that came: we got them."""\n', "got"),
        ("for own in range(3):\n    pass\n", "own"),
        ("def f(other):\n    return other\n", "other"),
        ("first, *known = 1, 2\n", "known"),
        ('def f():\n    """How often a draft is accepted."""\n', "How"),
    ],
)
def test_an_odd_word_would_be_found(source, word):
    assert odd_words(source) == [word]


def test_contributing_points_at_what_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("### Where is it computed?") : text.index("### Kernels")]
    source = "\n".join(path.read_text() for path in (ROOT / "otmd").rglob("*.py"))
    names = {*re.findall(r"`(\w+)`", table)}
    assert len(names) > 10
    assert not {name for name in names if not re.search(rf"\b(def|class) {name}\b", source)}
    places = {*re.findall(r"`((?:otmd|tests|docs|experiments|paper_figures)/[\w/.]+)`", text)}
    assert len(places) > 20
    assert not {place for place in places if not (ROOT / place).exists()}


EXPANDED = re.compile(r"Union\[|_Buffer|_NestedSequence")


def expanded_signatures(things: dict[str, object]) -> list[str]:
    """Names of what has a signature in which an alias such as ``ArrayLike`` is written out."""
    return [
        name
        for name, thing in things.items()
        if callable(thing) and EXPANDED.search(str(inspect.signature(thing)))
    ]


def test_signatures_name_their_types():
    things = {}
    for name in sorted(public_names()):
        thing = operator.attrgetter(name)(otmd)
        if not is_exception(thing):
            things[name] = thing
        if inspect.isclass(thing):
            methods = inspect.getmembers(thing, inspect.isfunction)
            things |= {f"{name}.{m}": method for m, method in methods if not m.startswith("_")}
    assert expanded_signatures(things) == []
    assert "target_probs: 'ArrayLike'" in str(inspect.signature(otmd.optimal_acceptance))
    assert len(str(inspect.signature(otmd.optimal_acceptance))) < 200
    # An expanded one would be found.
    rate = lambda probs: probs  # noqa: E731
    rate.__annotations__ = {"probs": ArrayLike}
    assert expanded_signatures({"rate": rate}) == ["rate"]


def is_exception(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Exception)


def test_reference_lists_every_public_name():
    listed = reference_names()
    assert public_names() - set(listed) == set()
    assert len(listed) == len(set(listed))
    for name in listed:
        assert operator.attrgetter(name)(otmd) is not None, name


def reference_names() -> list[str]:
    """The names that the tables of the reference list."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return re.findall(r"^   ([\w.]+)$", "\n".join(map(Path.read_text, pages)), re.M)


def public_names() -> set[str]:
    """The names that ``otmd`` and its public packages list, each thing once, without constants."""
    names = {name for name in otmd.__all__ if not inspect.ismodule(getattr(otmd, name))}
    for package in {*otmd.__all__} - names:
        module = operator.attrgetter(package)(otmd)
        names |= {
            f"{package}.{name}"
            for name in getattr(module, "__all__", [])
            if not (name.isupper() or name in names or inspect.ismodule(getattr(module, name)))
        }
    return names


def test_relative_links_lead_somewhere():
    link = re.compile(r"""(?:\]\(|src="|srcset=")([^)#:\s"]+)(?:#[^)]*)?[)"]""")
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in link.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


# Formulas on pages, once code is cut out.
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|(?<![\\$])\$(?P<inline>[^$\n]+)\$", re.DOTALL)


@pytest.fixture(scope="module")
def mathml():
    spec = importlib.util.spec_from_file_location("formulas", ROOT / "docs" / "formulas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.mathml


def test_formulas_on_pages_become_mathml(mathml):
    found = [match for page in PAGES for match in FORMULA.finditer(CODE.sub("", page.read_text()))]
    assert len(found) > 1000
    for formula in found:
        text = mathml(formula[formula.lastgroup], formula.lastgroup)
        assert "\\" not in text
        assert "⧵" not in text
    with pytest.raises(ValueError, match="with a command that latex2mathml does not know"):
        mathml(r"\nosuch x")


@pytest.mark.parametrize(
    ("latex", "parts"),
    [
        (r"A \setminus B", "<mo>∖</mo>"),
        (r"\alpha^*", "<mo>∗</mo>"),
        (
            r"\max_H f",
            '<munder><mo form="prefix" lspace="0" rspace="0.167em" movablelimits="true">max',
        ),
        (r"\arg\max_y f", '<mo form="prefix" lspace="0" rspace="0.167em">arg</mo><munder>'),
        (r"n \log(x)", '<mo form="prefix" lspace="0.167em" rspace="0">log</mo>'),
        (r"\mathbb E X", "<mi>𝔼</mi>"),
        (r"a = -b", '<mo form="prefix">−</mo>'),
        (r"a - b", "<mo>−</mo>"),
        (r"\bigl(a\bigr)^n", "<msup><mrow><mo"),
        (r"s'", '<mrow><mi>s</mi><mo form="postfix" lspace="0" rspace="0">′</mo></mrow>'),
        (r"s'_j", "′</mo></mrow><mi>j</mi></msub>"),
        (r"(a)^n", ")</mo><msup><mrow /><mi>n</mi></msup></mrow>"),
        (r"p/q", '<mo lspace="0" rspace="0">/</mo>'),
        (r"\begin{aligned} a & b \\ c & d \end{aligned}", "<mtr>"),
    ],
)
def test_what_browsers_draw_wrongly_is_mended(latex, parts, mathml):
    assert parts in mathml(latex)
