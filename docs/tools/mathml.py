"""Formulas as MathML, in pages and docstrings: browsers draw it by themselves, offline, and no script is loaded."""

import re
import textwrap

import griffe
import latex2mathml.converter

REST_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math:: *(?P<first>[^\n]*)\n(?P<rest>(?:(?P=indent) +[^\n]*\n|[ ]*\n(?=(?P=indent) +\S))*)",
    re.M,
)
REST_INLINE = re.compile(r":math:`([^`]*)`")
# Code is left alone: fenced, or between backticks. A formula of a page stands between dollar signs, as GitHub reads it.
PAGE = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]+`)|\$\$(?P<block>.+?)\$\$|(?<![\\$\w])\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])",
    re.M | re.S,
)
SIMILAR = "<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"  # a relation, with space about it


class RestMath(griffe.Extension):
    """Rewrite ``.. math::`` and ``:math:`` of every docstring before it is parsed."""

    def on_instance(self, *, obj, **kwargs):
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = REST_BLOCK.sub(_block, obj.docstring.value + "\n")
            obj.docstring.value = REST_INLINE.sub(lambda found: mathml(found[1], "inline"), text).rstrip()


def on_page_markdown(markdown, **kwargs):
    """Rewrite the formulas of a page."""
    return PAGE.sub(_formula, markdown)


def mathml(tex, display):
    """Return a formula as MathML on one line, in a span within a sentence: Markdown takes it for a block."""
    made = latex2mathml.converter.convert(" ".join(tex.split()), display=display).replace(*SIMILAR)
    return made if display == "block" else f"<span>{made}</span>"


def _formula(found):
    if found["code"]:
        return found[0]
    return mathml(found["block"], "block") if found["block"] else mathml(found["inline"], "inline")


def _block(found):
    tex = " ".join(textwrap.dedent(found["first"] + "\n" + textwrap.dedent(found["rest"])).split())
    return f"{found['indent']}{mathml(tex, 'block')}\n\n"
