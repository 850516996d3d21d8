"""What a training step costs: FLOPs, bytes through memory, bytes over the link."""

from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION, Convention, find_convention
from stepgrade.hardware.cost.flops import Counts, Flops, attended_span, count, flops_per_token
from stepgrade.hardware.cost.links import LinkTraffic, link_traffic
from stepgrade.hardware.cost.plan import DTYPES, METHODS, OPTIMIZERS, Parallelism, Plan, find_dtype
from stepgrade.hardware.cost.traffic import Traffic, traffic_per_token

__all__ = [
    "CONVENTIONS",
    "DEFAULT_CONVENTION",
    "DTYPES",
    "METHODS",
    "OPTIMIZERS",
    "Convention",
    "Counts",
    "Flops",
    "LinkTraffic",
    "Parallelism",
    "Plan",
    "Traffic",
    "attended_span",
    "count",
    "find_convention",
    "find_dtype",
    "flops_per_token",
    "link_traffic",
    "traffic_per_token",
]
