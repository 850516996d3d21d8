"""Intercept calls of modules without attaching anything that would be saved or copied with them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import Module

from stepgrade.record.patches import Patches, without_ours
from stepgrade.record.timeline import NONE, StepTimeline

Before = Callable[[Module, tuple[object, ...], dict[str, object]], None]
After = Callable[[Module, object, object], None]


_compiler = torch._C._dynamo.eval_frame  # no public API
# Python frames per module call without the recorder; some versions count one more.
_FRAMES_OF_A_CALL = 3


def _looking() -> object:
    looking = _compiler.set_eval_frame(None)
    _compiler.set_eval_frame(looking)
    return looking


class Around(NamedTuple):
    """The functions that run before and after a module's calls."""

    before: Before
    after: After


class ModuleCalls:
    """Runs functions around the calls of watched modules, by wrapping `Module.__call__` itself.

    Hooks on the modules would be pickled, copied, scripted and exported with them, and global ones make
    torch.compile warn. Modules are kept by identity and may be garbage-collected at any time.
    """

    def __init__(self, timeline: StepTimeline, fail: Callable[[Exception], None]) -> None:
        self.on_unknown: Callable[[Module], Around | None] = lambda _: None
        self._timeline = timeline
        self._fail = fail
        self._undo: Callable[[], None] = lambda: None
        self._is_deeper = False  # the recursion limit is raised right now
        self._watched: dict[int, Around] = {}
        self._alive: dict[int, weakref.ref[Module]] = {}

    def start(self, patches: Patches) -> None:
        """Start intercepting calls."""
        original = Module.__call__
        patches.replace(Module, "__call__", self._wrapper(original))
        _tell_compiler(original, Module.__call__)
        self._undo = partial(_tell_compiler, Module.__call__, original)

    def stop(self) -> None:
        """Forget all modules; a compiled model may keep the wrapper, which then does nothing."""
        self._undo()
        self.on_unknown = lambda _: None
        self._watched.clear()
        self._alive.clear()

    def watch(self, module: Module, around: Around) -> None:
        """Run the two functions around this module's calls, inside any that were added before."""
        key, outer = id(module), self._watched.get(id(module))
        if outer is None:

            def forget(_gone: object) -> None:
                self._watched.pop(key, None)
                self._alive.pop(key, None)

            self._alive[key] = weakref.ref(module, forget)
            self._watched[key] = around
            return

        def before(module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            outer.before(module, args, kwargs)
            around.before(module, args, kwargs)

        def after(module: Module, args: object, output: object) -> None:
            around.after(module, args, output)
            outer.after(module, args, output)

        self._watched[key] = Around(before, after)

    def _wrapper(self, original: Callable[..., object]) -> Callable[..., object]:
        find, timeline = self._watched.get, self._timeline
        is_compiling, is_tracing = torch.compiler.is_compiling, torch.jit.is_tracing
        # Not None while torch.compile traces each function that is called: it must not trace the wrapper.
        compiler = getattr(_compiler, "get_eval_frame_callback", _looking)  # since torch 2.5

        def call(module: Module, /, *args: object, **kwargs: object) -> object:
            if is_compiling():  # first of all, so that nothing enters the graph
                return original(module, *args, **kwargs)
            try:
                around = find(id(module))
                if (
                    (around is None and timeline.direction != NONE)  # inside a model, the common case
                    or timeline.is_elsewhere
                    or compiler() is not None  # nothing is timed in a graph
                    or is_tracing()
                ):
                    return original(module, *args, **kwargs)
                around = around or self._find(module)
                if around is None and self._is_deeper:
                    return original(module, *args, **kwargs)
                return self._call(original, around, module, args, kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error.__traceback__)
                raise  # adds no frame

        return call

    def _find(self, module: Module) -> Around | None:
        try:
            return self.on_unknown(module)
        except Exception as error:  # noqa: BLE001  the training must go on
            self._fail(error)
            return None

    def _call(
        self,
        original: Callable[..., object],
        around: Around | None,
        module: Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Call a watched or outermost module."""
        try:
            if around is not None:
                around.before(module, args, kwargs)
        except Exception as error:  # noqa: BLE001  the training must go on
            self._fail(error)
        # Each call takes one more frame, so raise the recursion limit inside: modules can be nested as
        # deeply as without the recorder. Outside of modules the script's own limit applies.
        is_outermost, limit = not self._is_deeper, sys.getrecursionlimit()
        output = None
        try:
            if is_outermost:
                self._is_deeper = True
                sys.setrecursionlimit(limit + limit // _FRAMES_OF_A_CALL)
            output = original(module, *args, **kwargs)
        finally:
            if is_outermost:
                self._is_deeper = False
                if sys.getrecursionlimit() == limit + limit // _FRAMES_OF_A_CALL:
                    with suppress(RecursionError):  # the script is already deeper
                        sys.setrecursionlimit(limit)
            if around is not None:
                try:
                    around.after(module, args, output)
                except Exception as error:  # noqa: BLE001  as above
                    self._fail(error)
        return output


def _tell_compiler(old: Callable[..., object], new: Callable[..., object]) -> None:
    """Make torch.compile, if loaded, treat the wrapper as `Module.__call__`: it then goes to `forward`."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        known = vars(sys.modules.get(name, object)).get("unpatched_nn_module_call")
        if known is old:
            setattr(sys.modules[name], "unpatched_nn_module_call", new)  # noqa: B010  unknown to mypy
