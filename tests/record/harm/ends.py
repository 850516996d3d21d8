"""Scripts that end in one way or another, and the handlers, signals and hooks on the way there."""

from __future__ import annotations

import signal

from tests.record.harm.running import Case

_WAITS = "import signal, time\n{}\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)\n"

CASES = {
    "sys.exit with all kinds of values": Case(
        """
        import subprocess
        ends = ["0", "7", "-1", "256", "300", "None", "'words'", "3.5", "[1, 2]", "True", "object", "2**70"]
        if len(sys.argv) == 1:
            for end in ends:
                ran = subprocess.run([sys.executable, __file__, end], capture_output=True, text=True)
                print(end, ran.returncode, ran.stderr)
        else:
            sys.exit(eval(sys.argv[1]))
        """
    ),
    "a text as exit code": Case("sys.exit('the reason')"),
    "its own SystemExit": Case("class Done(SystemExit): pass\nraise Done(12)"),
    "errors that the script shows itself": Case(
        """
        import logging, threading, traceback
        def fail():
            loss = model(torch.ones(1, 8)).sum()
            loss.backward(); loss.backward()
        train(4)
        for attempt in (lambda: model(torch.ones(1, 9)), fail, lambda: optimizer.zero_grad(wrong=1)):
            try: attempt()
            except Exception as error:
                traceback.print_exc()
                logging.exception("logged")
                print(len(traceback.extract_tb(error.__traceback__)))
        thread = threading.Thread(target=fail, name="its own")
        thread.start(); thread.join()
        raise KeyError("last") from error if False else None
        """,
        trains=True,
    ),
    "an error in an error": Case(
        """
        train(4)
        try: model(torch.ones(1, 9))
        except RuntimeError:
            raise ValueError("the script's")
        """,
        trains=True,
    ),
    "an interrupt of its own": Case("raise KeyboardInterrupt"),
    "hooks of its own": Case(
        """
        import threading
        print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
        print(sys.unraisablehook is sys.__unraisablehook__, sys.displayhook is sys.__displayhook__)
        def shown(kind, error, trace):
            print("hook", kind.__name__)
            sys.__excepthook__(kind, error, trace)
        sys.excepthook = shown
        sys.unraisablehook = lambda given: print("unraisable", given.exc_type.__name__)
        class Bad:
            def __del__(self): raise OSError("in __del__")
        Bad()
        train(4)
        model(torch.ones(1, 9))
        """,
        trains=True,
    ),
    "exit functions in their order": Case(
        """
        import atexit
        atexit.register(print, "registered before torch")
        import torch, weakref
        torch.set_num_threads(1)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        def step(words):
            torch.manual_seed(0)
            model(torch.ones(1, 2)).sum().backward(); optimizer.step()
            print(words)
        for _ in range(5): step("in the script")
        atexit.register(step, "trains at exit")
        @atexit.register
        def fork():
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            print(os.waitpid(pid, 0)[1])
        atexit.register(int, "an error at exit")
        kept = weakref.finalize(model, print, "model freed")
        class Last:
            def __del__(self): print("freed last")
        last = Last()
        """
    ),
    "an exit function that exits": Case(
        "import atexit\nimport torch\natexit.register(sys.exit, 5)\natexit.register(print, 'before')\nsys.exit(3)"
    ),
    "an exit function that ends at once": Case(
        "import atexit\nimport torch\natexit.register(os._exit, 5)\natexit.register(lambda: print('x', flush=True))"
    ),
    "an exit inside a backward pass of the profiled step": Case(
        "train(2)\nmodel[1].linear.weight.register_hook(lambda gradient: sys.exit(6))\ntrain(1)", trains=True
    ),
    "an end at once": Case("train(4)\nprint('bye', flush=True)\nos._exit(5)", trains=True),
    "a segmentation fault": Case(
        "import ctypes, faulthandler\nfaulthandler.disable()\ntrain(4)\nctypes.string_at(0)", trains=True
    ),
    "an abort": Case("train(6)\nprint(bits(), flush=True)\nos.abort()", trains=True),
    "faulthandler": Case(
        """
        import faulthandler, tempfile
        print(faulthandler.is_enabled())
        faulthandler.enable(all_threads=False)
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=False)
            file.seek(0); print(file.read())
        """
    ),
    "os.exec": Case(
        """
        if len(sys.argv) == 1:
            train(6)
            os.environ["GIVEN"] = "1"
            sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, __file__, "again"])
        print(sys.argv, os.environ["GIVEN"], train(4), bits())
        sys.exit(7)
        """,
        trains=True,
        steps=4,
    ),
    "SIGTERM without a handler": Case(_WAITS.format(""), sent=signal.SIGTERM),
    "SIGTERM with a handler": Case(
        _WAITS.format("signal.signal(signal.SIGTERM, lambda *_: (print('ends'), sys.exit(9)))"),
        sent=signal.SIGTERM,
    ),
    "SIGINT to all": Case(_WAITS.format(""), sent=signal.SIGINT, to_group=True),
    "SIGINT that the script catches": Case(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('saved')",
        sent=signal.SIGINT,
        to_group=True,
    ),
    "signals in training": Case(
        """
        import signal, time
        got = []
        signal.signal(signal.SIGUSR1, lambda number, frame: got.append(frame is not None))
        train(4)
        print("ready", flush=True)
        while not got: train(1)
        print(got)
        def over(*_): raise TimeoutError("time is up")
        signal.signal(signal.SIGALRM, over)
        caught = 0
        for _ in range(5):
            train(1)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            try: time.sleep(60)  # torch itself is not safe to interrupt anywhere
            except TimeoutError: caught += 1
        print(caught)
        """,
        trains=True,
        sent=signal.SIGUSR1,
    ),
    "a signal that the script waits for": Case(
        """
        import signal
        def signals(): return [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]
        before = signals()
        print(before, signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL))
        train(12)
        print(signals() == before, signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
            train(30)
            print(signal.sigwait({number}).name)
        """,
        trains=True,
    ),
    "stopped and continued": Case(
        """
        import subprocess, time
        stop = "sleep 0.3; kill -STOP {0} {1}; sleep 0.5; kill -CONT {0} {1}; echo done"
        ids = (os.getpid(), os.getppid() if "STEPGRADE_SESSION" in os.environ else os.getpid())
        print(subprocess.run(["sh", "-c", stop.format(*ids)], stdout=subprocess.PIPE).stdout)
        sys.exit(3)
        """
    ),
    "children ignored from outside": Case(
        "import signal\nprint(signal.getsignal(signal.SIGCHLD))\nsys.exit(7)",
        line="exec {python} -c 'import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.executable, sys.argv[1:])' {run}",
    ),
    "signals ignored from outside": Case(
        "import signal\nprint(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT))",
        line="trap '' HUP INT; {run}",
    ),
}
