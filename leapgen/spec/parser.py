"""Formula text to expression tree: Python's grammar, a whitelist of what may stand in it.

Only `ast.parse` looks at the text; nothing is compiled or evaluated. Every node knows its place in
the YAML file, through quotes and escapes, also where characters take several bytes.
"""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from dataclasses import dataclass

from leapgen.diagnostics import Report, Span, listing, suggest
from leapgen.spec import beyond
from leapgen.spec import expression as ex

MAX_LENGTH = 1000  # characters of one formula; also bounds the depth of the tree

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.MatMult: "@",
}
_ALLOWED = "a formula has names, numbers, + - * / **, parentheses and the functions "
_NUMBER = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Place:
    """Where a one-line text stands: `columns[i]` is the 1-based file column of its character i;
    one more entry tells where the text ends."""

    line: int
    columns: tuple[int, ...]

    def span(self, start: int, end: int) -> Span:
        """The span of characters start to end (0-based, end excluded; at least one column)."""
        last = len(self.columns) - 1
        start, end = min(start, last), min(end, last)
        return Span(self.line, self.columns[start], max(self.columns[end], self.columns[start] + 1))

    @classmethod
    def plain(cls, text: str, line: int = 1, column: int = 1) -> Place:
        """The place of a text that stands unquoted at line and column."""
        return cls(line, tuple(range(column, column + len(text) + 1)))


def parse(text: str, report: Report, place: Place | None = None) -> ex.Node:
    """Parse one formula; errors go to `report` and leave an `expression.HOLE` in the tree.

    Matrix syntax (`@`, `.T`, `S`, `I`, `diag`) parses everywhere; `shapes` and `native` decide
    where it may stand, since only they know what the formula is for.
    """
    place = place or Place.plain(text)
    body = text.lstrip(" ")
    shift = len(text) - len(body)
    if not _readable(body, shift, place, report):
        return ex.HOLE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `1if x` and the like: rejected below anyway
            tree = ast.parse(body, mode="eval").body
        return _Builder(body, shift, place, report).node(tree)
    except SyntaxError as error:
        _syntax_error(error, body, shift, place, report)
    except (RecursionError, MemoryError):  # how CPython's parser says "too deep"
        help_text = "split it into `let` definitions"
        span = place.span(0, len(text))
        report.error("formula-syntax", "the formula is nested too deeply", span, help=help_text)
    return ex.HOLE


def _readable(body: str, shift: int, place: Place, report: Report) -> bool:
    """Reject what `ast` would misread: comments, control characters, line breaks, novels."""
    whole = place.span(0, shift + len(body))
    if not body.strip():
        report.error("formula-syntax", "the formula is empty", whole, help="write 1 for one")
        return False
    if len(body) > MAX_LENGTH:
        message = f"the formula has more than {MAX_LENGTH} characters"
        report.error("formula-syntax", message, whole, help="split it into `let` definitions")
        return False
    for index, character in enumerate(body):
        control = unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs")
        if control or character in "#\\":
            message = "this character cannot stand in a formula"
            at = place.span(shift + index, shift + index + 1)
            help_text = "a formula is one line of ASCII text without comments"
            report.error("formula-syntax", message, at, repr(character), help_text)
            return False
    return True


def _syntax_error(error: SyntaxError, body: str, shift: int, place: Place, report: Report) -> None:
    """Python's own finding, moved to the file. Its offsets are 1-based characters."""
    start, end = (error.offset or 0) - 1, (error.end_offset or 0) - 1
    unfinished = start < 0 or start >= len(body.rstrip())  # offset 0: Python wanted more text
    if unfinished:
        end = len(body.rstrip())
        start = end - 1
    message = (error.msg or "invalid syntax").removesuffix(". Perhaps you forgot a comma?")
    message = "it ends too early" if unfinished else message
    help_text = "names, numbers, operators and parentheses, like -exp(a) * (b + 1)"
    span = place.span(shift + start, shift + max(end, start + 1))
    report.error("formula-syntax", f"this is not a formula: {message}", span, help=help_text)


@dataclass(frozen=True)
class _Builder:
    """Turns whitelisted `ast` nodes into ours; reports each of the others."""

    body: str
    shift: int
    place: Place
    report: Report

    def span(self, node: ast.expr) -> Span:
        start, end = self._range(node)
        return self.place.span(self.shift + start, self.shift + end)

    def _range(self, node: ast.expr) -> tuple[int, int]:
        """Character offsets in the body; `ast` counts UTF-8 bytes."""
        data = self.body.encode()
        end = node.end_col_offset if node.end_col_offset is not None else len(data)
        return len(data[: node.col_offset].decode()), len(data[:end].decode())

    def text(self, node: ast.expr) -> str:
        start, end = self._range(node)
        return self.body[start:end]

    def error(self, code: str, message: str, node: ast.expr, *help: str) -> None:
        self.report.error(code, message, self.span(node), help=help)

    def node(self, node: ast.expr) -> ex.Node:
        match node:
            case ast.Constant():
                return self._number(node)
            case ast.Name():
                return self._name(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.Subscript(value=ast.Name(id="S")):
                message = "there is one state `S`, without levels or positions"
                self.error("second-state", message, node, *beyond.CARRIED)
                return ex.HOLE
        help_text = _ALLOWED + listing(ex.FUNCTIONS)
        self.error("formula-syntax", f"{_kind(node)} cannot stand in a formula", node, help_text)
        return ex.HOLE

    def _number(self, node: ast.Constant) -> ex.Node:
        text, value = self.text(node), node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            kind = "text" if isinstance(value, (str, bytes)) else f"`{text}`"
            help_text = "write it like 16, 0.5 or 1e-6"
            self.error("formula-syntax", f"{kind} is not a number", node, help_text)
            return ex.HOLE
        if not _NUMBER.fullmatch(text) or not abs(value) <= 1e300:
            message = f"`{text}` is not a plain decimal number"
            self.error("formula-syntax", message, node, "write it like 16, 0.5 or 1e-6")
            return ex.HOLE
        return ex.Number(value, text, self.span(node))

    def _name(self, node: ast.Name) -> ex.Node:
        text = self.text(node)  # `node.id` is normalised: it may differ from what is written
        if text.isascii():
            return ex.Name(node.id, self.span(node))
        self.error("formula-syntax", f"`{text}` is not an ASCII name", node, _latin(text))
        return ex.HOLE

    def _binary(self, node: ast.BinOp) -> ex.Node:
        left, right = self.node(node.left), self.node(node.right)
        operator = _BINARY.get(type(node.op))
        if operator is None:
            power = isinstance(node.op, ast.BitXor)
            help_text = "a power is written `**`" if power else "the operators are + - * / **"
            self.error("formula-operator", "this operator has no meaning here", node, help_text)
            return ex.HOLE
        return ex.Binary(operator, left, right, self.span(node))

    def _unary(self, node: ast.UnaryOp) -> ex.Node:
        operand = self.node(node.operand)
        if not isinstance(node.op, ast.USub):
            self.error("formula-operator", "the only sign is -", node, "leave it out")
            return ex.HOLE
        return ex.Unary("-", operand, self.span(node))

    def _attribute(self, node: ast.Attribute) -> ex.Node:
        operand = self.node(node.value)
        if node.attr != "T":
            help_text = "the only one is the transpose `.T`, in `native`"
            self.error("formula-syntax", f"`.{node.attr}` has no meaning here", node, help_text)
            return ex.HOLE
        return ex.Transpose(operand, self.span(node))

    def _call(self, node: ast.Call) -> ex.Node:
        arguments = tuple(self.node(a) for a in node.args)
        keywords = tuple((k.arg or "**", self.node(k.value)) for k in node.keywords)
        known = (*ex.FUNCTIONS, *ex.NATIVE_FUNCTIONS)
        name = self.text(node.func)
        if name not in known:
            self._unknown(node, name, arguments, known)
            return ex.HOLE
        if not self._arity(node, name) or not self._keywords(node, name):
            return ex.HOLE
        return ex.Call(name, arguments, keywords, self.span(node))

    def _unknown(
        self, node: ast.Call, name: str, arguments: tuple[ex.Node, ...], known: tuple[str, ...]
    ) -> None:
        """Report a function that there is not; of the state, none would do."""
        if any("S" in ex.names(a) for a in arguments):
            message = beyond.nonlinear(name)
            self.error("nonlinear-state", message, node, *beyond.LINEAR)
            return
        help_text = beyond.FUNCTIONS.get(name) or suggest(name, known)
        help_text = help_text or f"the functions are {listing(known)}"
        self.error("unknown-function", f"there is no function `{name}`", node.func, help_text)

    def _arity(self, node: ast.Call, name: str) -> bool:
        expected = 2 if name in ex.PAIRWISE else ex.REDUCTIONS.get(name, 1)
        if len(node.args) == expected:
            return True
        count = f"{expected} argument{'s' * (expected != 1)}"
        form = f"{name}({', '.join('V' if name in ex.UNITS else 'xy'[:expected])})"
        self.error("formula-arguments", f"`{name}` takes {count}", node, f"write {form}")
        return False

    def _keywords(self, node: ast.Call, name: str) -> bool:
        allowed = ("eps",) if name in ex.NORMS else ()
        wrong = [k for k in node.keywords if k.arg not in allowed]
        for keyword in wrong:
            message = f"`{name}` has no option `{keyword.arg or '**'}`"
            help_text = suggest(keyword.arg or "", allowed) or "`eps` is an option of `l2norm`"
            self.error("formula-arguments", message, keyword.value, help_text)
        return not wrong


def _latin(text: str) -> str:
    """`write beta` for a Greek letter or for a look-alike, else nothing."""
    words = []
    for character in text:
        name = unicodedata.name(character, "")
        greek = re.fullmatch(r"GREEK SMALL LETTER (\w+)", name)
        words.append(greek[1].lower() if greek else unicodedata.normalize("NFKC", character))
    written = "".join(words)
    good = _WORD.fullmatch(written) and written.isascii()
    return f"write `{written}`" if good else "use ASCII letters, digits and underscores"


def _kind(node: ast.expr) -> str:
    kinds: dict[type[ast.expr], str] = {
        ast.Compare: "a comparison",
        ast.BoolOp: "`and`/`or`",
        ast.IfExp: "a condition",
        ast.Subscript: "an index",
        ast.Tuple: "a comma",
        ast.List: "a list",
        ast.Dict: "a mapping",
        ast.Lambda: "a function definition",
        ast.Starred: "`*`",
        ast.JoinedStr: "text",
        ast.NamedExpr: "an assignment",
    }
    return kinds.get(type(node), "this construct")
