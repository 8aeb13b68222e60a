"""The jinja2 environment of chat templates: transformers' dialect, sandboxed, with every cost counted.

What a template can use is what transformers gives it (trimmed blocks, loop controls, `generation` blocks, `tojson`,
`strftime_now`, `raise_exception`), less a few HTML helpers and `lipsum`, whose cost cannot be bounded.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from wllm_api.text.limits import (
    LimitError,
    Meter,
    check_arguments,
    check_brace_format,
    check_method,
    check_operation,
    check_percent_format,
    check_size,
)

_MAX_INDENT = 100
_UNBOUNDED_FILTERS = ("urlize", "wordwrap", "xmlattr")

active_meter: ContextVar[Meter] = ContextVar("active_meter")


class Refused(jinja2.TemplateError):
    """The template called `raise_exception`; the message is its own."""


class _Counting(Extension):
    """The `generation` block (which only marks text for training), and the counters that are put into templates."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, as in transformers: variables set inside stay inside.
        return nodes.CallBlock(self.call_method("_generation"), [], [], body).set_lineno(line)

    def statement(self) -> nodes.Node:
        return nodes.ExprStmt(self.call_method("_tick"))

    def wrapped(self, node: nodes.Expr) -> nodes.Expr:
        return self.call_method("_made", [node])

    def joined(self, parts: list[nodes.Expr]) -> nodes.Expr:
        return self.call_method("_concat", parts)

    def _generation(self, caller: Macro) -> str:
        return caller()

    def _tick(self) -> None:
        active_meter.get().tick()

    def _made(self, value: object) -> object:
        active_meter.get().made(value)
        return value

    def _concat(self, *parts: object) -> str:
        texts = [str(part) for part in parts]
        check_size(sum(map(len, texts)))
        joined = "".join(texts)
        active_meter.get().made(joined)
        return joined


class _Counted(NodeTransformer):
    """Counts each turn of a loop, each run of a macro body and each list, and bounds `~` and block assignments."""

    def __init__(self, counting: _Counting) -> None:
        self._counting = counting

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._body(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._counting.wrapped(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._counting.wrapped(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return self._counting.wrapped(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._counting.joined(node.nodes)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        # Any filter counts the text that it makes, and this one leaves it as it is.
        node.filter = nodes.Filter(node.filter, "string", [], [], None, None)
        return node

    def _body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._counting.statement())
        return node


class _Namespace(Namespace):
    """`namespace()` without private attributes, and without the cost of printing what it holds."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may name an attribute "self"
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _check_public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_public(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.TemplateError(f"a namespace has no private attributes, such as {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise Refused(message)


def _strftime_now(pattern: str) -> str:
    if sys.platform == "win32":
        # Without a leading zero: a minus there is refused, and written as #. Two percent signs are one of the text.
        pattern = re.sub("%(%|-)", lambda found: "%#" if found[1] == "-" else "%%", pattern)
    return datetime.now().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > _MAX_INDENT:
        raise LimitError(f"it indents JSON by more than {_MAX_INDENT} characters")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _counted_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skipped = 1 + hasattr(function, "jinja_pass_arg")  # the value itself, and jinja's own first argument

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        value, arguments = args[skipped - 1], (*args[skipped:], *kwargs.values())
        check_arguments(arguments)
        if not hasattr(value, "__len__") and hasattr(value, "__iter__"):
            value = active_meter.get().drawn(value)
            args = (*args[: skipped - 1], value, *args[skipped:])
        if name == "replace":
            check_method(str(value), "replace", tuple(map(str, arguments)))
        elif name == "format":
            check_percent_format(str(value))
        elif name == "indent":
            check_size(str(value).count("\n") * max((_length(argument) for argument in arguments), default=4))
        elif name == "join":
            check_size(len(value) * max((_length(argument) for argument in arguments), default=0))
        elif name == "sum" and any(isinstance(argument, (list, tuple)) for argument in arguments):
            raise LimitError("it adds up lists, which has no limit")
        result = function(*args, **kwargs)
        active_meter.get().made(result)
        return result

    return counted


def _length(argument: object) -> int:
    return argument if isinstance(argument, int) else len(argument) if isinstance(argument, str) else 0


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates; rendering needs an `active_meter`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Counting, loopcontrols])
        counting = self.extensions[_Counting.identifier]
        assert isinstance(counting, _Counting), "the extension given above"
        self._counting = counting
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        self.filters = {name: _counted_filter(name, function) for name, function in self.filters.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace

    def compiled(self, source: str) -> jinja2.Template:
        """The template of `source`, with counters in it; raises whatever jinja2 and Python's compiler raise."""
        tree = _Counted(self._counting).visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operation(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        active_meter.get().made(result)
        return result

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, method = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if owner is self._counting:
            return super().call(context, function, *args, **kwargs)
        check_arguments((*args, *kwargs.values()))
        if isinstance(owner, str):
            if method == "join" and args:
                args = (active_meter.get().drawn(args[0]), *args[1:])
                check_size(len(owner) * len(args[0]))
            check_method(owner, method, args)
        result = super().call(context, function, *args, **kwargs)
        active_meter.get().made(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_brace_format(value.__self__)
        return wrapped
