"""Formulas as MathML, which browsers draw without a script and without a network.

latex2mathml converts them. This module corrects the spaces, sizes and limits that it leaves to the browser. A
command that latex2mathml does not know is an error.
"""

import unicodedata
from xml.etree import ElementTree

from latex2mathml.converter import convert

FUNCTIONS = {"arg", "exp", "log", "max", "min", "Pr", "sup"}
LIMITS = {"max", "min", "sup"}
SYMBOLS = {"⧵": "∖", "*": "∗"}
"""Set minus as an operator, not a letter; a star that is not raised by itself."""
SCRIPTED = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
FORMS = dict.fromkeys("([{", "prefix") | dict.fromkeys(")]}", "postfix")
TIGHT = {"/", "|"}
BEFORE_SIGN = set("([{,=<>≤≥≠≈∝")
THIN = "0.167em"


def mathml(latex: str, display: str = "inline") -> str:
    """Write a formula as MathML, ``"inline"`` or as a ``"block"``."""
    known = latex.replace("{aligned}", "{split}")
    formula = ElementTree.fromstring(convert(known, xmlns="", display=display))
    for element in list(formula.iter()):
        _mend_symbol(element)
        _mend_prime(element)
        row = list(element)
        for index, part in enumerate(row):
            element[index] = _mend_fence(part)
        if element.tag not in SCRIPTED:
            for before, part, after in zip([None, *row], row, [*row[1:], None], strict=False):
                _mend_sign(before, part)
                _mend_function(before, part, after)
    text = ElementTree.tostring(formula, encoding="unicode")
    if "\\" in text:
        raise ValueError(f"latex: got {latex!r}, with a command that latex2mathml does not know")
    return text


def _mend_symbol(element: ElementTree.Element) -> None:
    """Write a symbol as the character that browsers space and draw well."""
    if element.text in SYMBOLS:
        element.tag = "mo"
        element.text = SYMBOLS[element.text]
    if element.tag == "mo" and element.text in FORMS:
        element.set("form", FORMS[element.text])
    if element.tag == "mo" and element.text in TIGHT:
        element.attrib |= {"lspace": "0", "rspace": "0"}
    if element.attrib.get("mathvariant") == "double-struck":
        del element.attrib["mathvariant"]
        element.text = unicodedata.lookup(f"MATHEMATICAL DOUBLE-STRUCK CAPITAL {element.text}")


def _mend_prime(element: ElementTree.Element) -> None:
    """Set a prime beside its letter: most fonts raise it already."""
    if element.tag not in {"msup", "msubsup"} or element[-1].text not in {"′", "″"}:
        return
    base, *lower, prime = element
    prime.tag = "mo"
    prime.attrib = {"form": "postfix", "lspace": "0", "rspace": "0"}
    element[:] = [base, prime]
    element.tag = "mrow"
    if lower:
        primed = ElementTree.Element("mrow")
        primed.extend([base, prime])
        element[:] = [primed, *lower]
        element.tag = "msub"


def _mend_fence(part: ElementTree.Element) -> ElementTree.Element:
    """Keep a parenthesis at its size, and the scripts after it at their height."""
    if part.tag not in SCRIPTED or FORMS.get(part[0].text) != "postfix":
        return part
    fence = part[0]
    part[0] = ElementTree.Element("mrow")
    if "minsize" in fence.attrib:
        part[0].append(fence)
        return part
    whole = ElementTree.Element("mrow")
    whole.extend([fence, part])
    return whole


def _base(part: ElementTree.Element | None) -> ElementTree.Element | None:
    """The part of a row without its sub- and superscripts."""
    while part is not None and part.tag in SCRIPTED:
        part = part[0]
    return part


def _mend_sign(before: ElementTree.Element | None, part: ElementTree.Element) -> None:
    """Set a plus or minus without a left operand as a prefix operator."""
    alone = before is None or (before.tag == "mo" and before.text in BEFORE_SIGN)
    if alone and part.tag == "mo" and part.text in {"+", "−"}:
        part.set("form", "prefix")


def _mend_function(
    before: ElementTree.Element | None,
    part: ElementTree.Element,
    after: ElementTree.Element | None,
) -> None:
    """Space the name of a function as TeX does, and put its limits below it."""
    name = _base(part)
    word = (name.text or "").removeprefix("\\")
    if word not in FUNCTIONS:
        return
    left, right = _base(before), _base(after)
    apart = left is not None and (left.tag != "mo" or FORMS.get(left.text) == "postfix")
    argument = right is not None and FORMS.get(right.text) != "prefix"
    name.tag = "mo"
    name.text = word
    name.attrib = {
        "form": "prefix",
        "lspace": THIN if apart else "0",
        "rspace": THIN if argument else "0",
    }
    if word in LIMITS:
        name.set("movablelimits", "true")
        if part.tag == "msub":
            part.tag = "munder"
