"""Weights from the trainer's memory into a server's, over NCCL between GPUs or over gloo between CPUs.

It is controlled over HTTP by the protocol of vLLM's weight transfer (checked against 0.32):

POST /init_weight_transfer_engine  both sides join a group: the trainer as rank 0, the server's workers from 1 on
POST /start_weight_update          what arrives from here on is not used yet
POST /update_weights               names, dtypes and shapes; answered when all tensors, broadcast meanwhile, are there
POST /finish_weight_update         the new weights are used from here on

vLLM supports NCCL only, `swe-serve` gloo only.
"""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, TCPStore

from swe_trainers.engines.http import JsonClient
from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["Transport", "WeightReceiver", "WeightTransfer"]

Transport = Literal["files", "nccl", "gloo"]
"""How weights reach a server: through a shared folder, or from memory to memory."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_T = TypeVar("_T")


class WeightTransfer:
    """The trainer's end.

    Args:
        client: of the server.
        backend: of the group.
        timeout_s: of joining the group, and of one transfer.
    """

    def __init__(self, client: JsonClient, backend: Literal["nccl", "gloo"], *, timeout_s: float) -> None:
        if backend == "nccl" and not torch.cuda.is_available():
            raise ConfigurationError("engine.transport nccl: there is no GPU here. Try: files, or gloo with swe-serve")
        self._client, self._backend, self._timeout_s = client, backend, timeout_s
        self._group: Any = None

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Make the server use these weights from now on.

        A restarted server is no longer in the group: it is asked once to join a new one.

        Args:
            weights: by their names in a checkpoint; on the GPU for NCCL.
        Raises:
            EngineError: the server does not take all of them.
        """
        if self._group is not None:
            try:
                return self._send(weights)
            except EngineError:
                self.close()
        self._join()
        return self._send(weights)

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None and self._backend == "nccl":
            self._group.abort()  # else it would wait for a peer that is gone
        self._group = None

    def _send(self, weights: Mapping[str, Tensor]) -> None:
        tensors = [tensor.detach().contiguous() for tensor in weights.values()]
        update = {
            "names": list(weights),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
        }
        self._client.post("/start_weight_update", {})
        sent = _beside(lambda: _broadcast(self._group, tensors))
        self._client.post("/update_weights", {"update_info": update}, tries=1)  # the tensors are sent once
        self._done(sent, "to send")
        self._client.post("/finish_weight_update", {})

    def _join(self) -> None:
        self._client.get("/health")  # the one call here that may find a dead server and restart it
        workers = 1 if self._backend == "gloo" else int(self._client.get("/get_world_size")["world_size"])
        info: dict[str, Any] = {"rank_offset": 1, "world_size": 1 + workers}
        timeout = timedelta(seconds=self._timeout_s)
        if self._backend == "gloo":
            store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timeout)
            info |= {"master_address": _own_address(self._client.url), "master_port": store.port}
            joined = _beside(lambda: dist.ProcessGroupGloo(store, 0, 1 + workers, timeout))
        else:
            # The group's id, which PyTorch keeps under "0" in a store of this process, is sent to the workers; their
            # communicators start with a sum of one element.
            private = HashStore()
            joined = _beside(lambda: _nccl_group(private, 1 + workers, timeout))
            info["nccl_unique_id_b64"] = base64.b64encode(private.get("0")).decode()
        self._client.post("/init_weight_transfer_engine", {"init_info": info}, tries=1)
        self._group = self._done(joined, "to join")

    def _done(self, future: Future[_T], what: str) -> _T:
        try:
            return future.result(self._timeout_s)
        except (FutureTimeoutError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else f"nothing in {self._timeout_s:g} s"
            raise EngineError(f"{self._client.url}: weights over {self._backend}: failed {what}: {reason}") from error


class WeightReceiver:
    """A server's end of a gloo group; called from the threads of requests."""

    def __init__(self) -> None:
        self._group: Any = None
        self._lock = threading.Lock()
        self._arrived: dict[str, Tensor] = {}

    def join(self, info: Mapping[str, Any], *, timeout_s: float = 60.0) -> None:
        """Join the trainer's group.

        Args:
            info: `master_address`, `master_port`, `rank_offset`, `world_size`.
            timeout_s: until the others must have joined.
        Raises:
            ConfigurationError: a value is missing or wrong, or there is no such group.
        """
        try:
            address, port = str(info["master_address"]), int(info["master_port"])
            rank, size = int(info["rank_offset"]), int(info["world_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                "init_info: expected master_address, master_port, rank_offset and world_size; weights come over gloo"
            ) from error
        timeout = timedelta(seconds=timeout_s)
        with self._lock:
            try:
                store = TCPStore(address, port, is_master=False, timeout=timeout)
                self._group = dist.ProcessGroupGloo(store, rank, size, timeout)
            except RuntimeError as error:
                raise ConfigurationError(f"{address}:{port}: no group there: {str(error).splitlines()[0]}") from error

    def start(self) -> None:
        """Start an update; drops the tensors of an unfinished one.

        Raises:
            ConfigurationError: no group was joined.
        """
        with self._lock:
            self._joined()
            self._arrived = {}

    def receive(self, update: Mapping[str, Any], model: Mapping[str, Tensor]) -> None:
        """Receive tensors.

        Args:
            update: `names`, `dtype_names`, `shapes`.
            model: the model's tensors by name; no others are accepted.
        Raises:
            ConfigurationError: no group was joined, or these are not the model's tensors.
        """
        names: Sequence[str] = update["names"]
        for name, dtype, shape in zip(names, update["dtype_names"], update["shapes"], strict=True):
            if name not in model or list(model[name].shape) != list(shape) or dtype not in _DTYPES:
                raise ConfigurationError(f"names: the model has no {name} of shape {shape} in {', '.join(_DTYPES)}")
        with self._lock:
            group = self._joined()
            for name, dtype in zip(names, update["dtype_names"], strict=True):
                tensor = torch.empty(model[name].shape, dtype=_DTYPES[dtype])
                _broadcast(group, [tensor])
                self._arrived[name] = tensor

    def finish(self) -> dict[str, Tensor]:
        """All tensors received since `start`."""
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        return arrived

    def _joined(self) -> Any:
        if self._group is None:
            raise ConfigurationError("no group was joined; ask for /init_weight_transfer_engine first")
        return self._group


def _broadcast(group: Any, tensors: Sequence[Tensor]) -> None:
    """Broadcast from rank 0, in order; on GPUs too all have arrived when this returns."""
    for tensor in tensors:
        group.broadcast([tensor], dist.BroadcastOptions()).wait()
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.synchronize()


def _nccl_group(store: HashStore, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 - it has no public name
    group: Any = dist.ProcessGroupNCCL(store, 0, size, options)
    group.allreduce([torch.zeros(1, device="cuda")]).wait()
    torch.cuda.synchronize()
    return group


def _beside(work: Callable[[], _T]) -> Future[_T]:
    """Run on a daemon thread: a peer that never joins must not keep the process alive."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future raises it
            future.set_exception(error)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def _own_address(url: str) -> str:
    """The address of this machine as the server sees it, IPv4 or IPv6.

    Raises:
        EngineError: there is no way to the server.
    """
    parts = urlsplit(url)
    reason: OSError | None = None
    try:
        for family, kind, _, _, place in socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                try:
                    probe.connect(place)  # sends nothing
                    return str(probe.getsockname()[0])
                except OSError as error:
                    reason = error
    except OSError as error:
        reason = error
    raise EngineError(f"{url}: weights over gloo: no way to the server: {reason}")
