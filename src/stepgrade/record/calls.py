"""Something to run before and after every call of a module, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Before = Callable[[object, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[object, object, object], None]


def around_calls(module: Any, before: Before, after: After) -> Callable[[], None]:
    """Run `before` and `after` around the module's calls, failing ones too; return how to end that."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return _around_compiled(module, before, after)
    handles = (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, always_call=True),
    )

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _around_compiled(module: Any, before: Before, after: After) -> Callable[[], None]:
    """Stay outside the graph that `module.compile()` made: hooks would be traced into it."""
    compiled = module._compiled_call_impl  # noqa: SLF001  where torch keeps it

    def call(*args: Any, **kwargs: Any) -> Any:
        before(module, args, kwargs)
        output = None
        try:
            output = compiled(*args, **kwargs)
        finally:
            after(module, args, output)
        return output

    module._compiled_call_impl = call  # noqa: SLF001
    return lambda: setattr(module, "_compiled_call_impl", compiled)
