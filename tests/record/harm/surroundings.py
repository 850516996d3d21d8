"""Scripts that look at what surrounds them: files, streams, limits, settings of Python and torch."""

from __future__ import annotations

from tests.record.harm.running import OURS, Case

CASES = {
    "how it was started": Case(
        """
        import __main__
        print(sys.argv, __name__, __file__, __spec__, sys.path[0], sys.flags, sys.orig_argv[1:], __main__.__dict__.keys())
        print(sys.executable, sys.prefix, [type(each).__name__ for each in sys.path_hooks], len(sys.path), os.getcwd())
        print(sorted(name for name in sys.modules if name.startswith(("torch", "numpy", "msgspec", "stepgrade"))))
        print(sys.getrecursionlimit(), sys.getswitchinterval(), os.umask(0o22))
        """
    ),
    "as a module": Case(
        "print(__name__, __spec__.name, sys.argv, sys.path[0])", line="{start} -m train an argument"
    ),
    "classes of __main__": Case(
        """
        import pickle
        class Thing:
            x = 1
        pickle.dump([Thing, Thing()], open("thing.pkl", "wb"))
        print(pickle.load(open("thing.pkl", "rb"))[0] is Thing, Thing.__module__)
        torch.save(model, "whole.pt"); torch.save(optimizer.state_dict(), "optimizer.pt")
        train(5)
        torch.save(model, "trained.pt"); torch.save(optimizer.state_dict(), "optimizer.pt")
        print(pickle.dumps(model) == pickle.dumps(torch.load("trained.pt", weights_only=False)))
        """,
        trains=True,
    ),
    "environment and open files": Case(
        f"""
        import subprocess
        show = "import os; print(sorted(i for i in os.environ.items() if i[0] not in {OURS!r} + ('_', 'PWD', 'SHLVL', 'OLDPWD')))"
        def files(): return sorted(int(each) for each in os.listdir("/proc/self/fd"))
        before = dict(os.environ)
        exec(show)
        print(files())
        train(3); print(files())
        train(9); print(files(), dict(os.environ) == before, flush=True)
        with open("own.txt", "w") as own: print(own.fileno())
        subprocess.run([sys.executable, "-c", show])
        pid = os.fork()
        if pid == 0:
            print(files(), flush=True)
            os._exit(0)
        ended(pid)
        """,
        trains=True,
    ),
    "files from outside": Case(
        "print(os.read(3, 99), os.get_inheritable(3)); os.write(4, b'written')\nprint(sorted(os.listdir('/proc/self/fd')))",
        line="echo given > in.txt; {run} 3<in.txt 4>out.txt",
    ),
    "few and small files allowed": Case(
        """
        import resource
        train(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        kept = []
        try:
            while True: kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error: print(len(kept), error.strerror)
        train(8)
        os.close(kept.pop())
        print(open(__file__).readline() != "", train(4))
        try: open("large", "wb").write(bytes(4000))
        except OSError as error: print(error.strerror)
        print(bits(), flush=True)
        os.closerange(0, 64)
        train(6)
        os._exit(4)
        """,
        trains=True,
        is_recorded=False,
    ),
    "limits": Case(
        """
        import resource
        names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
        print({name: resource.getrlimit(getattr(resource, name)) for name in names}, os.nice(0), os.sched_getaffinity(0))
        """
    ),
    "no standard output": Case(
        "train(6)\nprint('lost')\nprint(sys.stdout, os.path.exists('/proc/self/fd/1'), file=sys.stderr)",
        trains=True,
        line="{run} >&-",
    ),
    "no standard streams": Case(
        "open('streams', 'w').write(repr((sys.stdin, sys.stdout, sys.stderr)))\nsys.exit(3)",
        line="{run} <&- >&- 2>&-",
    ),
    "a reader that goes away": Case(
        "import signal\nfor number in range(100000): print(number)", line="{run} | head -n 3"
    ),
    "standard output in order": Case(
        """
        import ctypes
        print("first", sys.stdout.line_buffering, sys.stdout.isatty())
        os.write(1, b"second\\n")
        train(4)
        ctypes.CDLL(None).puts(b"third")
        print("fourth")
        """,
        trains=True,
    ),
    "warnings shown": Case("print(train(8), bits())", trains=True, line="PYTHONDEVMODE=1 {run}"),
    "standard input": Case(
        "print(input('name? '), sys.stdin.readline(), sys.stdin.buffer.read())", given="one\ntwo\nthree\n"
    ),
    "a debugger": Case(
        "train(3)\nbreakpoint()\nprint('after')\ntrain(3)\n",
        trains=True,
        given="p 40 + 2\nup\nw\nc\n",
        steps=6,
    ),
    "standard input of a shell": Case("print(input())", line="{run}; cat", given="mine\nof the next\n"),
    "settings of torch": Case(
        """
        import inspect, numpy, random, warnings
        def settings():
            return (
                torch.get_default_dtype(), torch.get_num_threads(), torch.get_num_interop_threads(),
                torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(),
                torch.get_float32_matmul_precision(), torch.is_anomaly_enabled(), torch.backends.mkldnn.enabled,
                torch.is_autocast_enabled(), [str(each) for each in warnings.filters],
            )
        print(settings())
        random.seed(0); numpy.random.seed(0)
        warnings.simplefilter("error")
        torch.use_deterministic_algorithms(True); torch.set_default_dtype(torch.float64)
        model.double(); train(8); print(settings(), bits())
        try: warnings.warn("its own")
        except UserWarning as error: print(error, warnings.showwarning.__module__)
        print(numpy.random.rand(3), random.random(), torch.rand(3), torch.initial_seed())
        print(inspect.signature(torch.autograd.backward), torch.nn.Module.__call__.__qualname__, sorted(vars(model)))
        """,
        trains=True,
    ),
    "settings of Python": Case(
        """
        import gc, threading, weakref
        print(sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
        names = []
        def trace(frame, event, arg):
            if frame.f_code.co_filename == __file__ and event == "call": names.append(frame.f_code.co_name)
        sys.settrace(trace); threading.settrace(trace)
        train(4)
        sys.settrace(None)
        sys.setprofile(trace); threading.setprofile(trace)
        train(4)
        thread = threading.Thread(target=bits); thread.start(); thread.join()
        sys.setprofile(None)
        print(names, [each.name for each in threading.enumerate()])
        def depth(level=0):
            try: return depth(level + 1)
            except RecursionError: return level
        print(sys.getrecursionlimit(), depth())
        sys.setrecursionlimit(500)
        train(5)
        print(sys.getrecursionlimit(), depth())
        gc.set_threshold(500, 5, 5); gc.disable()
        train(4)
        print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks)
        gc.freeze(); gc.unfreeze()
        gone = weakref.ref(model); weakref.finalize(model, print, "finalized")
        del model, optimizer
        gc.collect()
        print(gone())
        """,
        trains=True,
        is_watched=False,
    ),
    "files of its own": Case(
        """
        import tempfile
        os.umask(0o77); os.mkdir("below"); os.chdir("below")
        train(8)
        open("own", "w").close()
        print(oct(os.stat("own").st_mode), os.getcwd(), oct(os.umask(0)))
        os.environ["TMPDIR"] = os.getcwd()
        print(tempfile.gettempdir())
        """,
        trains=True,
    ),
    "temporary files that it removes": Case(
        """
        import shutil, tempfile, time
        train(4)
        for name in os.listdir(tempfile.gettempdir()):
            shutil.rmtree(os.path.join(tempfile.gettempdir(), name))
        time.sleep(0.5)  # the command looks how far it is
        print(train(6), bits(), os.listdir(tempfile.gettempdir()))
        """,
        trains=True,
        line="mkdir tmp; TMPDIR=$PWD/tmp {run}",
    ),
    "a directory that is gone": Case(
        """
        os.mkdir("below"); os.chdir("below"); os.rmdir("../below")
        train(8)
        try: print(os.getcwd())
        except FileNotFoundError as error: print(error)
        print(bits())
        """,
        trains=True,
    ),
    "started in a directory that is gone": Case(
        "print(sys.path[0])\nsys.exit(3)",
        line="mkdir gone; cd gone; rmdir ../gone; {start} {here}/train.py",
    ),
    "asyncio": Case(
        """
        import asyncio, signal
        async def work():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print, "asked to end")
            for _ in range(5):
                train(1)
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            process = await asyncio.create_subprocess_exec("sh", "-c", "echo child; exit 3", stdout=-1)
            print(await process.communicate(), process.returncode)
            print(await asyncio.to_thread(bits))
            process = await asyncio.create_subprocess_exec("sleep", "60")
            process.terminate()
            print(await process.wait())
        asyncio.run(work())
        """,
        trains=True,
    ),
    "its own profiler": Case(
        """
        from torch.profiler import ProfilerActivity, profile
        train(6)
        os.environ["KINETO_LOG_LEVEL"] = "99"
        with profile(activities=[ProfilerActivity.CPU]) as found:
            train(1)
            pid = os.fork()
            if pid == 0: os._exit(3)
        print(ended(pid), sorted({event.name for event in found.events()}))
        print(train(4), bits())
        """,
        trains=True,
    ),
}
