"""How much of the hardware a run used: MFU, HFU, and why a share above one cannot be true."""

from __future__ import annotations

from stepgrade.hardware.ceilings import FLOPS_PER_TFLOP

# The peak that a sparse data sheet prints is twice the dense one.
SPARSE_FACTOR = 2.0


def utilisation(tok_s: float, flops_per_token: float, peak_tflops: float, devices: int = 1) -> float:
    """Return tok/s of the whole run x FLOPs per token over the peak of all its devices, 0 to 1.

    With the model's FLOPs it is the MFU, with the hardware's the HFU.
    """
    return tok_s * flops_per_token / (devices * peak_tflops * FLOPS_PER_TFLOP)


def why_above_one(share: float, *, seq: int | None = None, counted_devices: int = 1) -> tuple[str, ...]:
    """Return the likely causes of an efficiency above 1, likeliest first; nothing when it is not."""
    if share <= 1.0:
        return ()
    length = f" of {seq:,}" if seq else ""
    causes = [
        f"padding was counted: give the real tokens per step, not batch x the sequence length{length}",
        "the wrong device: check --device against what the run used (a laptop part, another memory size)",
        "the wrong precision: check --dtype (fp8 has twice the peak of bf16, fp32 far less)",
    ]
    if share <= SPARSE_FACTOR:
        causes.append("a peak described by hand that is too low; or its sparse double")
    if counted_devices == 1:
        causes.append(
            "more than one device: the throughput is the whole run's, --world-size says how many shared it"
        )
    causes.append(
        "the model or method: a larger model, or full training given for a LoRA run, asks for more FLOPs"
    )
    return tuple(causes)
