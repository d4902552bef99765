"""Copies between this machine's memory and a CUDA device, beside what the device computes."""

from __future__ import annotations

from typing import Any


class Transfers:
    """Inputs travel on a stream of their own, so while the batch before is computed; results follow what made them.

    All copies go by pinned memory: from and to any other, the device would make this thread wait. A result is copied
    on the computing stream, as a module may fill the same memory again for the next batch. Both by the rules of
    PyTorch's notes on CUDA semantics; the gain was not measured.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        self._sending = torch.cuda.Stream(device)

    def to_device(self, tensor: Any) -> Any:
        """Return a copy on the device, for the computing stream to use; it may not be complete yet."""
        import torch

        computing = torch.cuda.current_stream(self._device)
        pinned = tensor.pin_memory()  # it is not freed before it was copied
        with torch.cuda.stream(self._sending):
            there = pinned.to(self._device, non_blocking=True)
        computing.wait_stream(self._sending)
        # Its memory is the sending stream's, which must not use it again before.
        there.record_stream(computing)
        return there

    def to_host(self, tensor: Any) -> Any:
        """Return a copy in this machine's memory; its values are there when an event marked later has passed."""
        import torch

        if tensor.device.type != self._device.type:
            return tensor.detach().cpu().clone()
        tensor = tensor.detach().resolve_conj().resolve_neg()
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return here.copy_(tensor, non_blocking=True)

    def mark(self) -> Any:
        """Return an event that passes when all that was begun on the computing stream is done."""
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def transfers_to(device: Any) -> Transfers | None:
    """Return how to copy to and from a device; None where copies cannot overlap with computing."""
    return Transfers(device) if device.type == "cuda" else None
