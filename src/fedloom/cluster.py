"""A Ray cluster: workers on this machine or on many. The one place that imports Ray.

Ray is imported when a cluster is first asked for, since that takes a second and it is
an extra. A worker is a process that holds one thing, made there and called by name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import queue
import signal
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError, FedloomError, error_for, shown
from fedloom.core.settings import Count, check
from fedloom.core.version import VERSION
from fedloom.core.wording import counted

_log = logging.getLogger(__name__)

LOCAL = "local"
"""In the place of an address: a cluster here, for as long as it is needed."""
_RUNNING = "auto"
"""In the place of an address: the cluster that this machine belongs to."""
_ANSWERS_S = 5.0
"""How long an address may take to answer."""
_SETTINGS = b"\x04"
"""Kind of the first frame that both sides of HTTP/2, and so of gRPC, send."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + bytes(5)
"""How a client of HTTP/2 begins."""
_PLACED_S = 60.0
"""How long a worker may take to find a place and to start."""
_LOSSES = 3
"""Workers that may be lost over the same task before it is given up."""


_NEVER_BEGAN = "creation task"
"""In what Ray says of a worker that could not even import what it was to hold."""


class WorkerLost(Exception):
    """A worker is no more, with what it held: its process or its machine ended."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Where work is done: on the workers of a Ray cluster. It changes no result."""

    address: str = LOCAL
    """Address of the cluster, HOST:PORT; "auto" is the one that this machine belongs
    to; "local" starts one here and ends it with the run."""
    workers: Count | None = None
    """Number of workers; as many as the cluster has CPUs, or GPUs where they train, if
    not given."""

    def __post_init__(self) -> None:
        check(self)
        host, _, port = self.address.rpartition(":")
        is_address = bool(host) and port.isdecimal() and int(port) < 1 << 16
        if self.address not in (LOCAL, _RUNNING) and (
            not is_address or "/" in self.address
        ):
            raise ConfigError(
                f"ray: expected {LOCAL}, {_RUNNING} or HOST:PORT, found "
                f"{shown(self.address)}. `ray start --head` says the address."
            )


@contextmanager
def connected(ray: RaySettings | str | None) -> Iterator[Cluster | None]:
    """A cluster for as long as the work takes; None if none is asked for.

    A connection that the program has made before is used as it is, and stays.

    Args:
        ray: which cluster; a text is its address.

    Raises:
        ConfigError: Ray is not installed, nobody answers at the address, or what
            answers is another version of Ray or of Python.
    """
    if ray is None:
        yield None
        return
    settings = RaySettings(address=ray) if isinstance(ray, str) else ray
    library = _library()
    if library.is_initialized():
        there = library.get_runtime_context().gcs_address
        if settings.address not in (LOCAL, _RUNNING, there):
            raise ConfigError(
                f"ray: this program is connected to the Ray cluster at {there}, and "
                f"{settings.address} was asked for. Call ray.shutdown() first."
            )
        _send_tensors_as_arrays()
        yield Cluster(library, settings)
        return
    asked_to_end = signal.getsignal(signal.SIGTERM)
    try:
        _connect(library, settings.address)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, asked_to_end)  # Ray has put its own there
        _send_tensors_as_arrays()
        yield Cluster(library, settings)
    finally:
        library.shutdown()


class Cluster:
    """Machines that Ray has joined.

    Args:
        library: Ray.
        settings: what was asked for.
    """

    def __init__(self, library: Any, settings: RaySettings) -> None:
        self.settings = settings
        self._ray = library
        self._host = library.remote(_Host)

    @property
    def version(self) -> str:
        """Version of Ray."""
        return str(self._ray.__version__)

    @property
    def cpus(self) -> int:
        """CPUs of all machines."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    @property
    def gpus(self) -> int:
        """GPUs of all machines."""
        return int(self._ray.cluster_resources().get("GPU", 0))

    def worker_count(self, most: int, what: str, *, on_gpu: bool = False) -> int:
        """How many workers there will be.

        Args:
            most: more would have nothing to do.
            what: what each has at least one of, for messages.
            on_gpu: whether each needs a GPU.

        Raises:
            ConfigError: more were asked for, or there is no GPU for them.
        """
        asked = self.settings.workers
        if asked is not None and asked > most:
            raise ConfigError(
                f"ray: expected at most as many workers as {what} ({most}), found "
                f"{asked}. Take fewer (--ray-workers)."
            )
        if on_gpu and not self.gpus:
            raise ConfigError(
                "ray: the run trains on a GPU, and the machines of the cluster at "
                f"{self.settings.address} have none. Train on CPUs: engine.device=cpu."
            )
        return asked or max(1, min(most, self.gpus if on_gpu else self.cpus))

    def threads(self, count: int) -> int:
        """CPU threads of each of so many workers."""
        return max(1, self.cpus // count)

    def place(
        self,
        make: Callable[..., Any],
        *values: Any,
        count: int,
        threads: int,
        on_gpu: bool = False,
        is_another: bool = False,
    ) -> RayWorker:
        """Start a worker; it is not waited for.

        Args:
            make: makes what the worker holds, there.
            values: what that is given.
            count: how many workers share the cluster.
            threads: CPU threads of this one.
            on_gpu: whether it needs a GPU, or its share of one.
            is_another: whether it takes the place of one that was lost; if no CPU is
                free then, it shares those of others.
        """
        cpus = min(1.0, int(100 * max(self.cpus, 1) / count) / 100)
        free = self._ray.available_resources().get("CPU", 0)
        options: dict[str, Any] = {
            "num_cpus": 0 if is_another and free < cpus else cpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if on_gpu:
            options["num_gpus"] = min(1.0, int(100 * self.gpus / count) / 100)
        handle = self._host.options(**options).remote()
        asked = f"{counted(count, 'worker')} with {options['num_cpus']:g} CPU each"
        return RayWorker(self, handle, asked, (threads, make, values))

    def expect(self, workers: Sequence[RayWorker]) -> None:
        """Wait until workers that were started are there; else end all of them.

        Raises:
            FedloomError: one has no place, or ended at once.
            ConfigError: one has other versions than this process.
        """
        try:
            for worker in workers:
                worker.expect()
        except BaseException as error:
            for worker in workers:
                worker.end()
            if not isinstance(error, WorkerLost):
                raise
            raise FedloomError(
                f"ray: a worker was lost before it could begin ({error}). Take fewer "
                "workers (--ray-workers), or machines with more memory."
            ) from error

    @contextmanager
    def pool(
        self,
        count: int,
        threads: int,
        begin: Callable[..., None],
        values: tuple[Any, ...],
    ) -> Iterator[Callable[..., Future[Any]]]:
        """Workers that do one task after another, as processes of this machine would.

        A task whose worker is lost is begun again in another one. Whatever ends this
        asks those that train to finish the exchange, to secure it, and to stop.

        Args:
            count: how many.
            threads: CPU threads of each.
            begin: what each calls first.
            values: what that is given.

        Yields:
            What calls a function in one of them.
        """
        shared = self._ray.put(values)
        place = partial(self.place, _begun, begin, shared, count=count, threads=threads)
        workers = [place() for _ in range(count)]
        free: queue.SimpleQueue[RayWorker] = queue.SimpleQueue()
        is_over = threading.Event()

        def do(function: Callable[..., Any], *call: Any) -> Any:
            worker = free.get()
            try:
                if is_over.is_set():
                    raise FedloomError("ray: the work was stopped.")
                for left in reversed(range(_LOSSES)):
                    try:
                        return worker.do(function, *call)
                    except WorkerLost as error:
                        if is_over.is_set() or not left:
                            raise FedloomError(
                                f"A worker on {worker.place} was lost ({error})."
                            ) from error
                        _log.warning(
                            "The worker on %s was lost (%s). Another goes on from what "
                            "it had secured.",
                            worker.place,
                            error,
                        )
                        worker.end()
                        workers.remove(worker)
                        worker = place(is_another=True)
                        workers.append(worker)
                raise AssertionError("unreachable")
            finally:
                free.put(worker)

        with ThreadPoolExecutor(count) as threads_here:
            try:
                self.expect(workers)
                for worker in workers:
                    free.put(worker)
                yield lambda *call: threads_here.submit(do, *call)
            except BaseException:
                is_over.set()
                for worker in workers:
                    worker.ask_to_end()
                raise
            finally:
                is_over.set()
        for worker in workers:
            worker.end()

    def _has(self) -> str:
        """What there is, for messages."""
        free = self._ray.available_resources().get("CPU", 0)
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        machines = counted(len(alive), "machine")
        return f"{self.cpus} CPUs on {machines}, {free:g} of them free"


class _Hello(NamedTuple):
    """What a worker says of itself."""

    place: str
    pid: int
    node: str
    versions: dict[str, str]


class RayWorker:
    """A process of the cluster and what it holds.

    Args:
        cluster: whose it is.
        handle: Ray's of the process.
        asked: what was asked for, for messages.
        start: threads, what makes the thing, and what that is given.
    """

    def __init__(
        self, cluster: Cluster, handle: Any, asked: str, start: tuple[Any, ...]
    ) -> None:
        self._cluster = cluster
        self._ray = cluster._ray
        self._handle = handle
        self._asked = asked
        self._deadline = time.monotonic() + _PLACED_S
        self._said = handle.hello.remote()
        self._made: Any = handle.make.remote(*start)
        self._hello: _Hello | None = None

    @property
    def place(self) -> str:
        """The machine, as far as it is known."""
        return self._hello.place if self._hello is not None else "a machine"

    def expect(self) -> None:
        """Wait until it is there and holds its thing.

        Raises:
            FedloomError: there is no place for it.
            ConfigError: its versions are not those of this process.
            WorkerLost: it ended at once.
        """
        if self._hello is None:
            left = max(0.0, self._deadline - time.monotonic())
            ready, _ = self._ray.wait([self._said], timeout=left)
            if not ready:
                raise FedloomError(
                    f"ray: asked for {self._asked}, and one has found no place within "
                    f"{_PLACED_S:.0f} s. The cluster has {self._cluster._has()}. Take "
                    "fewer workers (--ray-workers), or wait until there is room."
                )
            self._hello = self._wait(self._said)
            assert self._hello is not None
            _refuse_other_versions(self._hello)
        if self._made is not None:
            self._wait(self._made)
            self._made = None

    def call(self, name: str, *values: Any) -> Callable[[], Any]:
        """Have it set about a call of what it holds; gives what waits for the answer.

        What the call raises is raised by that; or `WorkerLost`.
        """
        reference = self._handle.call.remote(name, *values)
        return partial(self._answer, reference)

    def do(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a function there, and wait for what it gives."""
        return self._answer(self._handle.do.remote(function, *values))

    def ask_to_end(self) -> None:
        """Send it what asks a process to end: SIGTERM."""
        if self._hello is None:
            self.end()
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self._hello.node, soft=False)
        ask = self._ray.remote(_terminate).options(
            num_cpus=0, scheduling_strategy=there
        )
        ask.remote(self._hello.pid)

    def end(self) -> None:
        """End it at once, if it is still there."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._handle)

    def _answer(self, reference: Any) -> Any:
        self.expect()
        return self._wait(reference)

    def _wait(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayError as error:
            is_lost = isinstance(
                error,
                errors.RayActorError
                | errors.WorkerCrashedError
                | errors.ObjectLostError
                | errors.OutOfMemoryError,
            )
            if is_lost and _NEVER_BEGAN not in str(error):
                raise WorkerLost(_reason(error)) from error
            # Before anything of ours could catch it: it could not be read there.
            raise ConfigError(
                f"ray: a worker cannot take what it is sent ({_last_line(error)}). "
                "Install the same version of Fedloom, with all that the run needs, on "
                "every machine of the cluster."
            ) from error
        if isinstance(answer, _Refusal):
            raise answer.error()
        return answer


class _Refusal(NamedTuple):
    """What a call raised in a worker."""

    exit_code: int | None
    text: str
    notes: tuple[str, ...]

    def error(self) -> Exception:
        """The same to be raised here."""
        if self.exit_code is None:
            return RuntimeError(self.text)
        error = error_for(self.exit_code, self.text)
        for note in self.notes:
            error.add_note(note)
        return error


class _Host:
    """In a worker: holds one thing and calls it by name."""

    def __init__(self) -> None:
        _send_tensors_as_arrays()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray has put its own there
        self._thing: Any = None

    def hello(self) -> _Hello:
        import ray

        node = ray.get_runtime_context().get_node_id()
        return _Hello(platform.node(), os.getpid(), node, _versions())

    def make(
        self, threads: int, make: Callable[..., Any], values: tuple[Any, ...]
    ) -> Any:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))

        def keep() -> None:
            self._thing = make(*values)

        return _guarded(keep)

    def call(self, name: str, *values: Any) -> Any:
        return _guarded(getattr(self._thing, name), *values)

    def do(self, function: Callable[..., Any], *values: Any) -> Any:
        return _guarded(function, *values)


def _guarded(function: Callable[..., Any], *values: Any) -> Any:
    """What a function gives; or what it raised, as something that can be sent."""
    try:
        return function(*values)
    except FedloomError as error:
        notes = tuple(getattr(error, "__notes__", ()))
        return _Refusal(error.exit_code, str(error), notes)
    except Exception:
        return _Refusal(None, traceback.format_exc(), ())


def _begun(begin: Callable[..., None], shared: Any) -> None:
    """In a worker of a pool: what it calls first, with what all of them share."""
    import ray

    begin(*ray.get(shared))


def _terminate(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _library() -> Any:
    """Ray, quiet.

    Raises:
        ConfigError: it is not installed.
    """
    # Nothing is sent to anybody, and what has no GPU keeps its environment as it is.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray.exceptions

        import ray
    except ImportError as error:
        raise ConfigError(
            f"ray: needs Ray, which is not installed ({error}). Install it with: "
            "pip install 'fedloom[ray]'"
        ) from error
    return ray


def _connect(library: Any, address: str) -> None:
    quiet = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
    }
    if address == LOCAL:
        quiet |= {"num_cpus": len(_cores())}
    elif address != _RUNNING:
        _refuse_silence(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.init(address=address, **quiet)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        advice = "Start one with `ray start --head`, or use --ray local."
        if "ersion mismatch" in str(error):
            advice = "Install the same versions here and there."
        elif address != _RUNNING:
            advice = (
                "This machine must belong to the cluster: `ray start --address "
                f"{address}` here, first."
            )
        raise ConfigError(
            f"ray: no connection to {address} ({_one_line(error)}). {advice}"
        ) from error


def _cores() -> Sequence[int]:
    """The CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)


def _refuse_silence(address: str) -> None:
    """Refuse an address at which nobody speaks gRPC, as Ray would wait for minutes.

    Raises:
        ConfigError: nobody does.
    """
    host, _, port = address.rpartition(":")
    found, cause = "something else", None
    try:
        where = host.strip("[]"), int(port)
        with socket.create_connection(where, timeout=_ANSWERS_S) as there:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            there.sendall(_GREETING)
            if there.recv(64)[3:4] == _SETTINGS:
                return
    except OSError as error:
        found, cause = f"nobody who answers ({error.strerror or error})", error
    raise ConfigError(
        f"ray: expected a Ray cluster at {address}, found {found}. `ray start --head` "
        "starts one and says its address; --ray local needs none."
    ) from cause


def _versions() -> dict[str, str]:
    return {"fedloom": VERSION, "torch": torch.__version__}


def _refuse_other_versions(hello: _Hello) -> None:
    for name, version in _versions().items():
        if hello.versions.get(name) != version:
            raise ConfigError(
                f"ray: {hello.place} has {name} {hello.versions.get(name)}, and this "
                f"machine {version}. Install the same version on all of them."
            )


def _send_tensors_as_arrays() -> None:
    """Have tensors cross as plain memory, which Ray passes on without a copy.

    They arrive in memory of their own: where a tensor lies may change the order in
    which vector instructions add it up, and so the last bits.
    """
    from ray.util.serialization import register_serializer

    register_serializer(Tensor, serializer=_as_array, deserializer=_from_array)


def _as_array(tensor: Tensor) -> tuple[Any, ...]:
    plain = tensor.detach().cpu().contiguous()
    flat = plain.reshape(-1).view(torch.uint8).numpy()
    return flat, plain.dtype, tuple(plain.shape), tensor.device.type


def _from_array(sent: tuple[Any, ...]) -> Tensor:
    flat, dtype, shape, device = sent
    if not len(flat):
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.tensor(flat).view(dtype).reshape(shape).to(device)


def _reason(error: BaseException) -> str:
    """Why a worker is no more, in a few words."""
    text = _one_line(error)
    for sign, reason in (
        ("node", "its machine is gone"),
        ("OOM", "it was killed for want of memory"),
    ):
        if sign in text:
            return reason
    return "its process ended"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip()[:300] if lines else type(error).__name__
