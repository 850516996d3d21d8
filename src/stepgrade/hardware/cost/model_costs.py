"""What one token of a planned run costs: FLOPs, bytes through memory and bytes over the link together."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.ceilings import Costs
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION, Convention
from stepgrade.hardware.cost.flops import Flops, count, flops_per_token
from stepgrade.hardware.cost.links import LinkTraffic, link_traffic
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.cost.traffic import Traffic, traffic_per_token, trained_parameters
from stepgrade.hardware.models.shape import ModelShape


class ModelCosts(Struct, frozen=True, kw_only=True):
    """What one token of a planned run costs, whatever the device."""

    architecture: str
    parameters: int
    active_parameters: int
    trained_parameters: int
    flops: Flops
    flops_palm: Flops
    traffic: Traffic
    link: LinkTraffic | None
    notes: tuple[str, ...] = ()

    @property
    def per_token(self) -> Costs:
        """Return the costs that ceilings are made of."""
        return Costs(
            flops=self.flops.hardware,
            flops_count=f"{self.flops.hardware / 1e9:.4g} GFLOP per token ({self.flops.convention})",
            bytes=self.traffic.total,
            bytes_count=f"{self.traffic.total / 1e6:.4g} MB per token (compulsory traffic)",
            link_bytes=self.link.per_token if self.link else None,
            link_count=f"{self.link.per_token / 1e6:.4g} MB sent per token" if self.link else "",
        )


def model_costs(shape: ModelShape, plan: Plan, convention: Convention | None = None) -> ModelCosts:
    """Return FLOPs, bytes and link bytes of one token, by `convention` and by PaLM's."""
    counts = count(shape, plan)
    return ModelCosts(
        architecture=shape.architecture,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        trained_parameters=trained_parameters(shape, plan),
        flops=flops_per_token(counts, plan, convention or CONVENTIONS[DEFAULT_CONVENTION]),
        flops_palm=flops_per_token(counts, plan, CONVENTIONS["palm"]),
        traffic=traffic_per_token(shape, plan),
        link=link_traffic(shape, plan) if plan.parallel.devices > 1 else None,
        notes=shape.notes,
    )
