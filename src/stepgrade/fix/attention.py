"""Attention that a source writes out: found as syntax, and edited to call the library's.

Scores of `q @ k.transpose(-2, -1)`, scaled and masked, their softmax, dropout, and the product with `v`, in
one expression or statement by statement. What does anything else in between is left to a person.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct

from stepgrade.fix.edit import CannotEdit, Edit
from stepgrade.fix.trial import Site

_MOST_COLUMNS = 100
_AS_GOOD_AS_HIDDEN = -1e4  # a score before the softmax
_FUNCTIONAL = {"torch.nn.functional": "", "torch.nn": ".functional", "torch": ".nn.functional"}
_HIDDEN = ("float('-inf')", "-float('inf')", "-torch.inf", "-math.inf")


def attention_edits(file: str, text: str) -> list[Edit]:
    """Return the edits that let a source call the library's attention wherever it writes it out."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    known = dict[str, str]()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            known |= {start + one.name: one.asname or one.name for one in node.names}
    functional = next((known[name] + rest for name, rest in _FUNCTIONAL.items() if name in known), "")
    return [
        edit
        for owner in ast.walk(tree)
        if functional and isinstance(owner, ast.ClassDef | ast.Module)
        for function in owner.body
        if isinstance(function, ast.FunctionDef)
        for at, statement in enumerate(function.body)
        for product in ast.walk(statement)
        if isinstance(product, ast.expr) and _sides(product)
        for edit in _Attention(text=text, owner=owner, function=function, at=at).edits(
            file, product, f"{functional}.scaled_dot_product_attention"
        )
    ]


def _sides(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return the sides of a matrix product."""
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            return left, right
        case ast.Call(func=ast.Attribute(attr="matmul" | "bmm"), args=[left, right], keywords=[]):
            return left, right
        case ast.Call(func=ast.Attribute(value=left, attr="matmul" | "bmm"), args=[right], keywords=[]):
            return left, right
    return None


def _place(text: str, line: int | None, column: int | None) -> int:
    """Return the position of a line and a column in bytes."""
    lines = text.split("\n")[: line or 1]
    return sum(len(one) + 1 for one in lines[:-1]) + len(lines[-1].encode()[:column].decode())


class _Attention(Struct, kw_only=True):
    """What an attention is made of, as it is found from the product with the values backwards."""

    text: str
    owner: ast.ClassDef | ast.Module
    function: ast.FunctionDef
    at: int  # the statement in the function that what is looked for comes before
    done: list[ast.stmt] = []  # statements that only make the weights
    names: set[str] = set()  # of what these assign
    is_softmax: bool = False  # whether it is behind us
    arguments: dict[str, str] = {}

    def edits(self, file: str, product: ast.expr, call: str) -> Iterator[Edit]:
        """Yield the edits of a product, if it is that of attention's weights with the values."""
        (weights, values), statement, text = _sides(product) or (product, product), self.at, self.text
        try:
            queries, keys = self._queries_and_keys(self._scores(weights))
        except CannotEdit:
            return
        inner = {id(node) for each in (*self.done, weights) for node in ast.walk(each)}
        others = [node for node in ast.walk(self.function) if isinstance(node, ast.Name)]
        others = [node for node in others if id(node) not in inner]
        last = self.function.body[statement].lineno
        used = {
            (node.id, each.lineno)
            for each in self.done
            for node in ast.walk(each)
            if isinstance(node, ast.Name)
        }
        if any(
            node.id in self.names
            or (isinstance(node.ctx, ast.Store) and any((node.id, at) in used for at in range(node.lineno)))
            for node in others
            if node.id in self.names or node.lineno < last
        ):
            return
        roots = [
            root
            for name in (ast.unparse(queries), ast.unparse(keys))
            for size in (f"{name}.shape[-1]", f"{name}.size(-1)")
            for root in (f"{size} ** 0.5", f"math.sqrt({size})")
        ]
        scale = ast.unparse(ast.parse(self.arguments.setdefault("scale", "1.0"), mode="eval"))
        if scale in [f"{one} / {root}" for root in roots for one in ("1", "1.0")]:
            del self.arguments["scale"]  # it is the call's own
        words = [*map(self._said, (queries, keys, values))]
        words += [f"{name}={value}" for name, value in self.arguments.items()]
        start = _place(text, product.lineno, product.col_offset)
        end = _place(text, product.end_lineno, product.end_col_offset)
        line = text[text.rfind("\n", 0, start) + 1 : start]
        newline = ("\r\n" if "\r\n" in text else "\n") + line[: len(line) - len(line.lstrip())]
        inside, step = ", ".join(words), f"{newline}    "
        if len(line) + len(call) + len(inside) > _MOST_COLUMNS:
            fits = len(step) + len(inside) <= _MOST_COLUMNS
            inside = f"{step}{inside if fits else f',{step}'.join(words) + ','}{newline}"
        spans = {product.lineno: (start, end)}
        for one in self.done:
            spans[one.lineno] = _place(text, one.lineno, 0), _place(text, (one.end_lineno or 0) + 1, 0)
        for at, span in spans.items():
            site = Site(call="scaled_dot_product_attention", file=file, line=at, calls=1)
            yield Edit(site, span=span, text=f"{call}({inside})" if span == (start, end) else "")

    def _said(self, node: ast.expr) -> str:
        """Return an expression as the source has it, in brackets where it may need them."""
        text = ast.get_source_segment(self.text, node) or ast.unparse(node)
        is_plain = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant)
        return text if is_plain else f"({text})"

    def _set(self, name: str, text: str) -> None:
        """Set an argument of the call; raise CannotEdit for a second one of it."""
        if name in self.arguments or (self.arguments.keys() | {name}) >= {"attn_mask", "is_causal"}:
            raise CannotEdit("the scores are changed twice")
        self.arguments[name] = text

    def _made(self, node: ast.expr) -> ast.expr:
        """Return what a name was last assigned in the function, for good; other expressions as they are."""
        while isinstance(node, ast.Name):
            self.at -= 1
            if self.at < 0:
                raise CannotEdit("it comes from elsewhere")
            found = self.function.body[self.at]
            match found:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == node.id:
                    self.done.append(found)
                    self.names.add(name)
                    node = value
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))) if (
                    name == node.id
                ):
                    if attr != "masked_fill_":
                        raise CannotEdit("it is changed in place")
                    self.done.append(found)
                    self._mask(found.value)
        return node

    def _scores(self, weights: ast.expr) -> ast.expr:
        """Return the scores that the weights are the softmax of, over the last dimension."""
        match self._made(weights):
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[inner], keywords=[]
            ) if "drop" in name:
                self._set("dropout_p", f"self.{name}.p if self.training else 0.0")
                return self._scores(inner)
            case ast.Call(func=ast.Attribute(attr="softmax", value=of), args=args, keywords=keywords):
                is_method = ast.unparse(of) not in ("F", "torch")
                is_method &= not ast.unparse(of).endswith("functional")
                given = [*([of] if is_method else []), *args]
                given += [one.value for one in keywords if one.arg == "dim"]
                is_all = len(given) == 2 == is_method + len(args) + len(keywords)
                if is_all and ast.unparse(given[1]) == "-1":
                    self.is_softmax = True
                    return given[0]
        raise CannotEdit("the weights are not a softmax over the last dimension")

    def _queries_and_keys(self, scores: ast.expr) -> tuple[ast.expr, ast.expr]:
        """Return what the scores are the product of, and set how they are scaled and masked."""
        node = self._made(scores)
        match _sides(node):
            case (queries, ast.Attribute(value=keys, attr="mT")):
                return queries, keys
            case (queries, ast.Call(func=ast.Attribute(value=keys, attr="transpose"), args=dims)) if sorted(
                map(ast.unparse, dims)
            ) == ["-1", "-2"]:
                return queries, keys
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr="masked_fill")):
                self._mask(node)
            case ast.BinOp(left=inner, op=ast.Div(), right=by):
                self._set("scale", f"1.0 / {self._said(by)}")
            case ast.BinOp(left=inner, op=ast.Mult(), right=by):
                self._set("scale", self._said(by))
            case ast.BinOp(left=inner, op=ast.Add(), right=mask) if "scale" not in self.arguments:
                self._set("attn_mask", self._said(mask))
            case _:
                raise CannotEdit("the scores are not those of attention")
        return self._queries_and_keys(inner)

    def _mask(self, call: ast.expr) -> None:
        """Set what hides scores: the causal order if it is surely that, else the mask itself."""
        is_plain = isinstance(call, ast.Call) and len(call.args) == 2 and not call.keywords
        if not isinstance(call, ast.Call) or not is_plain or not self.is_softmax:
            raise CannotEdit("the mask is given in another way")
        hidden, score = call.args
        said = ast.unparse(score)
        if said not in _HIDDEN and not ("finfo" in said and said.endswith(".min")):
            try:
                is_hidden = float(ast.literal_eval(score)) <= _AS_GOOD_AS_HIDDEN
            except (ValueError, TypeError, SyntaxError):
                is_hidden = False
            if not is_hidden:
                raise CannotEdit("masked scores are not hidden")
        is_causal = self._is_triangle(hidden, "triu", "1")
        match hidden:
            case ast.UnaryOp(op=ast.Invert(), operand=kept):
                is_causal, text = self._is_triangle(kept, "tril", ""), self._said(kept)
            case ast.Compare(left=kept, ops=[ast.Eq()], comparators=[ast.Constant(value=0 | False)]):
                is_causal, text = self._is_triangle(kept, "tril", ""), f"{self._said(kept)} != 0"
            case _:
                text = f"~{self._said(hidden)}"
        self._set(*(("is_causal", "True") if is_causal else ("attn_mask", text)))

    def _is_triangle(self, node: ast.expr, kind: str, diagonal: str) -> bool:
        """Tell whether a mask is a triangle of ones, through names, buffers of the class, and views of it."""
        values: list[ast.expr] = []
        match node:
            case ast.Name(id=name):
                values = [
                    each.value
                    for each in self.function.body[: self.at]
                    if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name
                ]
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                values = [
                    call.args[1]
                    for call in ast.walk(self.owner)
                    if isinstance(call, ast.Call)
                    and ast.unparse(call.func) == "self.register_buffer"
                    and len(call.args) > 1
                    and ast.unparse(call.args[0]) == repr(name)
                ]
            case ast.Subscript(value=inner, slice=ast.Tuple(elts=parts)):
                plain = [ast.unparse(one) for one in parts]
                values = [inner] if all(one == "None" or one.startswith(":") for one in plain) else []
            case ast.Call(func=ast.Attribute(value=inner, attr="view" | "bool" | "to" | "unsqueeze")):
                values = [inner]
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=args, keywords=keywords):
                first, *rest = [*([] if ast.unparse(of) == "torch" else [of]), *args] or [of]
                more = [ast.unparse(one) for one in [*rest, *(one.value for one in keywords)]]
                is_ones = ast.unparse(first).startswith("torch.ones(")
                return name == kind and is_ones and "".join(more) == diagonal
        return len(values) == 1 and self._is_triangle(values[0], kind, diagonal)
