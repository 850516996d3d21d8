"""Train a small transformer with JAX on the processor, and profile it: run as a script, by `test_jax.py`.

What it writes on standard output is JSON: the wall clock of each step, and the FLOPs of a forward pass as
counted by hand.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, BATCH, SEQUENCE, WIDTH, HIDDEN, VOCABULARY = 4, 4, 64, 128, 512, 256
EXTRA = 12  # products of a slow layer beyond those that all have
Weights = dict[str, Any]


def arguments() -> argparse.Namespace:
    """Return what is to be trained, and what is wrong with it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for flag in ("--scan", "--remat", "--no-marks", "--no-wait"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--input-ms", type=float, default=0.0)
    parser.add_argument("--slow-layer", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


GIVEN = arguments()


def layer(data: Any, weights: Weights, *, is_slow: bool = False) -> Any:
    """Return what a layer makes of its input."""
    with jax.named_scope("attention"):
        mixed = jax.nn.softmax(data @ weights["q"] @ jnp.swapaxes(data, -1, -2)) @ data
    with jax.named_scope("mlp"):
        made = jax.nn.relu(mixed @ weights["up"]) @ weights["down"]
        for _ in range(EXTRA if is_slow else 0):
            made = jax.nn.relu(made @ weights["up"]) @ weights["down"]
    return data + made


def loss(weights: Weights, tokens: Any) -> Any:
    """Return the loss of a batch."""
    data, stacked = weights["table"][tokens], weights["layers"]
    if GIVEN.scan:

        def body(data: Any, one: Weights) -> tuple[Any, None]:
            return layer(data, one), None

        data, _ = jax.lax.scan(jax.checkpoint(body) if GIVEN.remat else body, data, stacked)
    else:
        for number in range(LAYERS):
            own = {name: leaf[number] for name, leaf in stacked.items()}
            with jax.named_scope(f"layer_{number}"):
                data = layer(data, own, is_slow=number == GIVEN.slow_layer)
    with jax.named_scope("head"):
        scores = jax.nn.log_softmax(data @ weights["table"].T)
    return -jnp.mean(jnp.take_along_axis(scores, tokens[..., None], -1))


@jax.jit
def train_step(weights: Weights, tokens: Any) -> Weights:
    """Return the weights after one step."""
    slopes = jax.grad(loss)(weights, tokens)
    with jax.named_scope("optimizer"):
        return jax.tree.map(lambda leaf, slope: leaf - 0.01 * slope, weights, slopes)


def one_step(weights: Weights, tokens: Any) -> Weights:
    """Fetch a batch and train on it."""
    with jax.profiler.TraceAnnotation("input"):
        time.sleep(GIVEN.input_ms / 1000)
    weights = train_step(weights, tokens)
    return weights if GIVEN.no_wait else jax.block_until_ready(weights)


def main() -> None:
    """Profile some steps and print what is known of them."""
    key, devices = jax.random.PRNGKey(0), jax.devices()
    shapes = {"q": (WIDTH, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    weights: Weights = {
        "table": jax.random.normal(key, (VOCABULARY, WIDTH)) * 0.1,
        "layers": {name: jax.random.normal(key, (LAYERS, *shape)) * 0.1 for name, shape in shapes.items()},
    }
    tokens = jnp.zeros((BATCH * len(devices), SEQUENCE), jnp.int32)
    if len(devices) > 1:
        mesh = Mesh(devices, ("data",))
        tokens = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("data")))
        weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    for _ in range(2):
        weights = jax.block_until_ready(train_step(weights, tokens))
    walls = []
    with jax.profiler.trace(GIVEN.directory):
        for number in range(GIVEN.steps):
            began = time.perf_counter()
            if GIVEN.no_marks:
                weights = one_step(weights, tokens)
            else:
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    weights = one_step(weights, tokens)
            walls.append((time.perf_counter() - began) * 1000)
        jax.block_until_ready(weights)
    rows = BATCH * SEQUENCE
    of_layer = 2 * rows * (WIDTH * WIDTH + 2 * SEQUENCE * WIDTH + 2 * WIDTH * HIDDEN)
    forward = LAYERS * of_layer + 2 * rows * WIDTH * VOCABULARY
    if GIVEN.slow_layer >= 0:
        forward += EXTRA * 2 * rows * 2 * WIDTH * HIDDEN
    print(json.dumps({"wall_ms": walls, "forward_flops": forward}))


if __name__ == "__main__":
    main()
