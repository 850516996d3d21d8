"""How devices are connected: domains with fast links, the network between them, and rates of collectives."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.errors import BadOption
from stepgrade.hardware.ceilings import Figures
from stepgrade.units import BYTES_PER_GB

# One 400 Gbit/s adapter for each device, which is what most clusters of such nodes have.
DEFAULT_NETWORK_GB_S = 50.0
DEFAULT_PER_NODE = 8
# Devices that one domain of fast links connects: an NVL72 rack, a pod or slice of TPUs.
_DOMAINS = {
    "gb200": 72,
    "gb300": 72,
    "gb10": 1,
    "tpu-v2": 512,
    "tpu-v3": 1024,
    "tpu-v4": 4096,
    "tpu-v5e": 256,
    "tpu-v5p": 8960,
    "tpu-v6e": 256,
    "tpu-7x": 9216,
}
# GB/s of each device to other domains: A100 systems came with 200 Gbit/s adapters, GB300 with 800; TPUs
# share 100 to 200 Gbit/s of a host.
_NETWORKS = {"sm_80": 25.0, "sm_70": 12.5, "tpu": 6.25}
_NETWORK_BY_KEY = {"gb300": 100.0, "b300": 100.0, "gb10": 25.0}
# GB/s of links that the catalogue has no rate of: 800 both ways (docs.cloud.google.com/tpu/docs/v6e).
_LINKS = {"tpu-v6e": 400.0}
# Far beyond what anyone runs; every way to share them out is looked at.
_MOST_DEVICES = 10_000_000


class Cluster(Struct, frozen=True, kw_only=True):
    """A number of equal devices: how many share a domain of fast links, and the rate of each to others.

    None stands for what is usual for the device.
    """

    devices: int
    per_node: int | None = None
    network_gb_s: float | None = None

    def __post_init__(self) -> None:
        rate = self.network_gb_s
        if self.devices < 1 or (self.per_node or 1) < 1 or not (rate is None or rate > 0):
            raise BadOption("devices, devices per node and the network's rate must be above 0")
        if self.devices > _MOST_DEVICES:
            raise BadOption(f"must be a whole number from 1 to {_MOST_DEVICES:,}", field="plan_devices")

    def links(self, figures: Figures) -> LinkRates:
        """Return the rates of the cluster's links for a device."""
        device, rates = figures.device, figures.link()
        key, arch = ("", "") if device is None else (device.key, device.arch or "")
        network = self.network_gb_s or _NETWORK_BY_KEY.get(key, _NETWORKS.get(arch, DEFAULT_NETWORK_GB_S))
        inside = rates[0].per_s if rates else _LINKS.get(key, network) * BYTES_PER_GB
        return LinkRates(
            per_node=self.per_node or _DOMAINS.get(key, DEFAULT_PER_NODE),
            inside=inside,
            network=network * BYTES_PER_GB,
        )


class LinkRates(Struct, frozen=True, kw_only=True):
    """Nominal rates in bytes/s of one device, one direction: inside a domain, and to other domains."""

    per_node: int
    inside: float
    network: float

    def rate(self, members: int, stride: int = 1) -> float:
        """Return the rate of a ring of `members` devices, every `stride`-th of the cluster.

        Members in one node share the traffic that leaves it between their adapters.
        """
        if members * stride <= self.per_node:
            return self.inside
        together = max(1, min(members, self.per_node // stride))
        return min(self.inside, self.network * together)

    def exchange_seconds(self, sent: float, members: int) -> float:
        """Return how long it takes that each of `members` devices sends `sent` bytes, equally to all."""
        near = sent / self.inside
        if members <= self.per_node:
            return near * (members - 1) / members
        return max(near, sent * (1 - self.per_node / members) / self.network)
