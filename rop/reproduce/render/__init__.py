"""From records to what people read: a ``Report``, and the terminal, Markdown, LaTeX and PNG made of it.

Nothing here runs an experiment; all forms come from one report, so they cannot disagree.
"""

from rop.reproduce.render.figures import draw as draw
from rop.reproduce.render.latex import latex as latex
from rop.reproduce.render.markdown import markdown as markdown
from rop.reproduce.render.report import Report as Report
from rop.reproduce.render.report import report_of as report_of
from rop.reproduce.render.terminal import show as show
