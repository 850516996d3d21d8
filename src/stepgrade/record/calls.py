"""Calls of modules, seen from outside: nothing is put on a module that could be saved or copied with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import Module

from stepgrade.record.patches import Patches
from stepgrade.record.timeline import NONE, StepTimeline

Before = Callable[[Module, tuple[object, ...], dict[str, object]], None]
After = Callable[[Module, object, object], None]


class Around(NamedTuple):
    """What runs before and after a module's calls."""

    before: Before
    after: After


class ModuleCalls:
    """Runs functions around the calls of watched modules, by wrapping `Module.__call__` itself.

    Hooks on the modules would be pickled, copied, scripted and exported with them, global ones make
    torch.compile warn. Modules are known by their identity and may be collected at any time.
    """

    def __init__(self, timeline: StepTimeline, fail: Callable[[Exception], None]) -> None:
        self.on_unknown: Callable[[Module], Around | None] | None = None
        self._timeline = timeline
        self._fail = fail
        self._watched: dict[int, Around] = {}
        self._alive: dict[int, weakref.ref[Module]] = {}

    def start(self, patches: Patches) -> None:
        """Begin to see calls."""
        patches.replace(Module, "__call__", self._wrapper(Module.__call__))

    def stop(self) -> None:
        """Forget every module; a compiled model may keep our function, which then does nothing."""
        self.on_unknown = None
        self._watched.clear()
        self._alive.clear()

    def watch(self, module: Module, around: Around) -> None:
        """Run the two functions around this module's calls, inside those that do so already."""
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

        def call(module: Module, /, *args: object, **kwargs: object) -> object:
            around = find(id(module))
            if around is None:
                if timeline.direction != NONE or self.on_unknown is None or not timeline.live:
                    return original(module, *args, **kwargs)
                if is_compiling() or is_tracing():
                    return original(module, *args, **kwargs)
                try:
                    around = self.on_unknown(module)
                except Exception as error:  # noqa: BLE001  whatever it is, the training goes on
                    self._fail(error)
                if around is None:
                    return original(module, *args, **kwargs)
            elif is_compiling() or is_tracing():  # inside a graph there is nothing to time
                return original(module, *args, **kwargs)
            try:
                around.before(module, args, kwargs)
            except Exception as error:  # noqa: BLE001  as above
                self._fail(error)
            output = None
            try:
                output = original(module, *args, **kwargs)
            finally:
                try:
                    around.after(module, args, output)
                except Exception as error:  # noqa: BLE001  as above
                    self._fail(error)
            return output

        return call
