"""How much of the hardware a run used: MFU, HFU, and why a share above one cannot be true."""

from __future__ import annotations

from stepgrade.hardware.ceilings import FLOPS_PER_TFLOP

# Data sheets that count sparsity print twice the dense peak.
SPARSE_FACTOR = 2.0


def utilisation(tok_s: float, flops_per_token: float, peak_tflops: float, devices: int = 1) -> float:
    """Return tok/s of the whole run x FLOPs per token over the peak of all its devices, 0 to 1.

    With the model's FLOPs it is the MFU, with the hardware's the HFU.
    """
    return tok_s * flops_per_token / (devices * peak_tflops * FLOPS_PER_TFLOP)


def why_above_one(share: float, kind: str, *, seq: int | None = None, devices: int = 1) -> tuple[str, ...]:
    """Return the likely causes of a share above 1 of a ceiling of `kind`, likeliest first."""
    if share <= 1.0:
        return ()
    length = f" of {seq:,}" if seq else ""
    causes = [
        f"padding was counted: give the real tokens per step, not batch x the sequence length{length}",
        "the wrong device: check --device (a laptop part, another memory size)",
    ]
    if kind == "compute":
        causes.append("the wrong precision: check --dtype (fp8 has twice the peak of bf16, fp32 far less)")
        causes.append("the wrong model or method: LoRA needs fewer FLOPs than full training")
        if share <= SPARSE_FACTOR:
            causes.append("a sparse peak: the catalogue's are dense, half of what some data sheets print")
    if devices == 1:
        causes.append("several devices: the throughput is the whole run's, --world-size says who shared it")
    return tuple(causes)
