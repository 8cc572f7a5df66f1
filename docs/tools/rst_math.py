"""Formulas of the docstrings as MathML: browsers draw it by themselves, and no script is loaded."""

import re
import textwrap

import griffe
import latex2mathml.converter

BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math:: *(?P<first>[^\n]*)\n(?P<rest>(?:(?P=indent) +[^\n]*\n|[ ]*\n(?=(?P=indent) +\S))*)",
    re.M,
)
INLINE = re.compile(r":math:`([^`]*)`")


class RestMath(griffe.Extension):
    """Rewrite ``.. math::`` and ``:math:`` of every docstring before it is parsed."""

    def on_instance(self, *, obj, **kwargs):
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = BLOCK.sub(_block, obj.docstring.value + "\n")
            obj.docstring.value = INLINE.sub(lambda found: _mathml(found[1], "inline"), text).rstrip()


def _block(found):
    tex = " ".join(textwrap.dedent(found["first"] + "\n" + textwrap.dedent(found["rest"])).split())
    return f"{found['indent']}{_mathml(tex, 'block')}\n\n"


def _mathml(tex, display):
    return latex2mathml.converter.convert(" ".join(tex.split()), display=display)
