"""Scripts that start other processes and threads."""

from __future__ import annotations

from tests.record.harm.running import Case

_FORK = """
train({before})
pid = os.fork()
if pid == 0:
    {child}
print(ended(pid), train(4), bits())
"""


def _fork(child: str, before: int = 6) -> Case:
    return Case(_FORK.format(child=child, before=before), trains=True)


CASES = {
    "a child that ends with sys.exit": _fork("sys.exit(3)"),
    "children that end in other ways": Case(
        """
        import signal
        train(6)
        def fail(): raise ValueError("of the child")
        again = [sys.executable, "-c", "import sys; print(sys.argv, len(sys.path)); sys.exit(6)"]
        for end in (
            lambda: os._exit(4),
            fail,
            lambda: os.kill(os.getpid(), signal.SIGTERM),
            os.abort,
            lambda: os.execv(sys.executable, again),
        ):
            pid = os.fork()
            if pid == 0:
                end()
            print(ended(pid), flush=True)
        print(train(4), bits())
        """,
        trains=True,
    ),
    "a child that falls off the end": Case(
        """
        train(6)
        pid = os.fork()
        if pid:
            print(ended(pid), train(4), bits())
        """,
        trains=True,
    ),
    "a child that trains and exits": _fork("print(train(5), bits()); sys.exit(5)"),
    "a fork before the first step": Case(
        """
        pid = os.fork()
        if pid == 0:
            print(train(4), bits())
            sys.exit(3)
        print(ended(pid), train(6), bits())
        """,
        trains=True,
    ),
    "a fork in the profiled step": _fork("print(train(5), bits()); sys.exit(3)", before=2),
    "a fork in a forward pass of the profiled step": Case(
        """
        train(2)
        def fork(module, args, output):
            handle.remove()
            pids.append(os.fork())
        pids = []
        handle = model[1].register_forward_hook(fork)
        train(1)
        if pids == [0]:
            sys.exit(8)
        print(ended(pids[0]), train(4), bits())
        """,
        trains=True,
    ),
    "a fork in a backward pass of the profiled step": Case(
        """
        train(2)
        pids = []
        def fork(gradient):
            if not pids:
                pids.append(os.fork())
        handle = model[1].linear.weight.register_hook(fork)
        train(1)
        handle.remove()
        if pids == [0]:
            sys.exit(8)
        print(ended(pids[0]), train(4), bits())
        """,
        trains=True,
    ),
    "a fork in a thread": Case(
        """
        import threading
        train(6)
        def fork():
            pid = os.fork()
            if pid == 0:
                print(train(3), bits(), flush=True)
                os._exit(3)
            print(ended(pid))
        thread = threading.Thread(target=fork)
        thread.start(); thread.join()
        print(train(4), bits())
        """,
        trains=True,
    ),
    "many forks in many threads": Case(
        """
        import threading
        train(6)
        def fork():
            for _ in range(10):
                pid = os.fork()
                if pid == 0:
                    os._exit(3)
                codes.append(ended(pid))
        codes = []
        threads = [threading.Thread(target=fork) for _ in range(6)]
        for thread in threads: thread.start()
        train(20)
        for thread in threads: thread.join()
        print(codes, bits())
        """,
        trains=True,
    ),
    "a daemon by two forks": Case(
        """
        import time
        train(6)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork():
                sys.exit(0)
            os.close(read)
            while os.getppid() != 1 and os.getpgid(0) == os.getsid(0) and os.path.exists(f"/proc/{os.getsid(0)}"):
                time.sleep(0.01)
            os.write(write, bits().encode())
            sys.exit(0)
        os.close(write)
        print(ended(pid), os.read(read, 100), os.read(read, 100), train(4), bits())
        """,
        trains=True,
    ),
    "a parent that ends before its child": Case(
        """
        train(6)
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)  # until there is no parent any more
            open("of_the_child", "w").write(f"{train(5)} {bits()}")
            sys.exit(3)
        print(bits())
        """,
        trains=True,
    ),
    "multiprocessing, forked": Case(
        """
        import multiprocessing as mp
        def work(number): return number * 2, bits()
        def put(queue): queue.put(train(3)); sys.exit(9)
        train(6)
        context = mp.get_context("fork")
        with context.Pool(2) as pool:
            print(pool.map(work, range(4)))
        queue = context.Queue()
        process = context.Process(target=put, args=(queue,))
        process.start(); print(queue.get()); process.join()
        print(process.exitcode)
        with context.Manager() as manager:
            shared = manager.dict(a=1)
            process = context.Process(target=shared.update, args=({"b": 2},))
            process.start(); process.join()
            print(dict(shared), process.exitcode)
        print(train(4), bits(), mp.active_children())
        """,
        trains=True,
    ),
    "multiprocessing, spawned": Case(
        """
        import multiprocessing as mp
        class Point:
            def __init__(self, x): self.x = x
        def work(point): return Point(point.x * 2)
        def fail(): raise ValueError("of the child")
        if __name__ == "__main__":
            for method in ("spawn", "forkserver"):
                context = mp.get_context(method)
                with context.Pool(1) as pool:
                    print([point.x for point in pool.map(work, [Point(1), Point(2)])])
                process = context.Process(target=sys.exit, args=(7,))
                process.start(); process.join(); print(process.exitcode)
            print(mp.active_children())
        """
    ),
    "torch.multiprocessing": Case(
        """
        import torch.multiprocessing as mp
        def work(rank, queue):
            queue.put((rank, train(4), bits()))
        if __name__ == "__main__":
            train(4)
            queue = mp.get_context("spawn").SimpleQueue()
            mp.spawn(work, (queue,), nprocs=1)
            print(queue.get(), bits())
        """,
        trains=True,
    ),
    "two ranks with gloo": Case(
        """
        import socket, multiprocessing
        import torch.distributed as dist
        def work(rank, port):
            store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            global model
            model = torch.nn.parallel.DistributedDataParallel(model)
            print(rank, train(5), flush=True) if rank == 0 else train(5)
            dist.barrier()
            dist.destroy_process_group()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0)); port = listener.getsockname()[1]
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=work, args=(rank, port)) for rank in range(2)]
        for rank in ranks: rank.start()
        for rank in ranks: rank.join()
        print([rank.exitcode for rank in ranks])
        """,
        trains=True,
    ),
    "loader workers": Case(
        """
        from torch.utils.data import DataLoader
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 12
            def __getitem__(self, index): return torch.full((8,), float(index)) + torch.rand(8)
        def epoch(loader):
            for batch in loader:
                loss = model(batch).square().mean()
                loss.backward(); optimizer.step(); optimizer.zero_grad()
            return loss.item().hex()
        if __name__ == "__main__":
            loader = DataLoader(Data(), 2, num_workers=2)
            print(epoch(loader), epoch(loader))
            kept = DataLoader(Data(), 2, num_workers=1, persistent_workers=True)
            print(epoch(kept), epoch(kept))
            spawned = DataLoader(Data(), 2, num_workers=1, multiprocessing_context="spawn")
            print(epoch(spawned), bits())
        """,
        trains=True,
    ),
    "subprocess": Case(
        """
        import subprocess
        train(6)
        show = [sys.executable, "-c", "import os, sys; print(sorted(os.listdir('/proc/self/fd')), sys.stdin.read()); sys.exit(5)"]
        for options in ({}, {"preexec_fn": os.setpgrp}, {"close_fds": False}, {"start_new_session": True}):
            ran = subprocess.run(show, input="given", capture_output=True, text=True, **options)
            print(ran)
        print(subprocess.run(["sh", "-c", "echo out; echo err >&2; kill -9 $$"], capture_output=True))
        print(os.system("exit 3"), os.popen("echo popen").read(), train(4), bits())
        """,
        trains=True,
    ),
    "a subprocess that nobody waits for": Case(
        """
        import subprocess
        subprocess.Popen(["sleep", "0.3"])
        print("no warning"); sys.exit(2)
        """
    ),
    "children reaped by a handler": Case(
        """
        import signal, time
        codes = []
        def reap(*_):
            while True:
                try: pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError: return
                if not pid: return
                codes.append(os.waitstatus_to_exitcode(status))
        signal.signal(signal.SIGCHLD, reap)
        train(3)
        for code in (1, 2, 3):
            if os.fork() == 0: sys.exit(code)
        while len(codes) < 3: time.sleep(0.01)
        print(sorted(codes), train(4), bits())
        try: os.wait()
        except ChildProcessError: print("no other child")
        """,
        trains=True,
    ),
    "threads that outlive the main one": Case(
        """
        import threading, time, atexit
        atexit.register(print, "at the end")
        go = threading.Event()
        def late():
            go.wait()
            time.sleep(0.2)
            print(train(5), bits(), [each.name for each in threading.enumerate()])
        threading.Thread(target=late).start()
        train(4)
        print("main ends")
        go.set()
        """,
        trains=True,
    ),
    "a thread that trains": Case(
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        thread = threading.Thread(target=lambda: print(train(8), bits()))
        thread.start(); thread.join()
        print(train(4), bits())
        def loss(seed):
            own = torch.full((4, 4), 0.1 * seed, requires_grad=True)
            (torch.ones(2, 4) @ own).square().sum().backward()
            return own.grad.sum().item()
        with ThreadPoolExecutor(4) as pool:
            print(list(pool.map(loss, range(8))))
        """,
        trains=True,
    ),
    "a daemon thread in its profiled step": Case(
        """
        import threading
        begun, never = threading.Event(), threading.Event()
        def forever():
            train(2)
            model(torch.randn(4, 8))
            begun.set()
            never.wait()
        threading.Thread(target=forever, daemon=True).start()
        begun.wait()
        print("main ends")
        sys.exit(4)
        """,
        trains=True,
    ),
    "a terminal of its own": Case(
        """
        import pty
        print(os.waitstatus_to_exitcode(pty.spawn(["sh", "-c", "tty >/dev/null && echo a terminal; exit 3"])))
        """
    ),
    "a nested interpreter": Case(
        """
        import _xxsubinterpreters as interpreters
        number = interpreters.create()
        interpreters.run_string(number, "import sys; print(len(sys.path), 'torch' in sys.modules, flush=True)")
        interpreters.destroy(number)
        print(interpreters.list_all())
        sys.exit(2)
        """
    ),
}
