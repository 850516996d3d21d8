"""Train a small transformer with JAX on the processor, and profile it: run as a script, by `test_jax.py`.

The last line on standard output is JSON: the wall clock of each step, and FLOPs as counted by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import time

LAYERS, BATCH, SEQUENCE, WIDTH, HIDDEN, VOCABULARY = 4, 4, 64, 128, 512, 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--scan", action="store_true")
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--input-ms", type=float, default=0.0)
    parser.add_argument("--slow-layer", type=int)
    parser.add_argument("--no-marks", action="store_true")
    parser.add_argument("--no-wait", action="store_true")
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={given.devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    def layer(data, weights, number=None):
        with jax.named_scope("attention"):
            mixed = jax.nn.softmax(data @ weights["q"] @ jnp.swapaxes(data, -1, -2)) @ data
        with jax.named_scope("mlp"):
            made = jax.nn.relu(mixed @ weights["up"]) @ weights["down"]
            if number is not None and number == given.slow_layer:
                for _ in range(12):
                    made = jax.nn.relu(made @ weights["up"]) @ weights["down"]
        return data + made

    def loss(weights, tokens):
        data = weights["table"][tokens]
        stacked = weights["layers"]
        if given.scan:

            def body(data, one):
                return layer(data, one), None

            data, _ = jax.lax.scan(jax.checkpoint(body) if given.remat else body, data, stacked)
        else:
            for number in range(LAYERS):
                with jax.named_scope(f"layer_{number}"):
                    data = layer(data, jax.tree.map(lambda leaf: leaf[number], stacked), number)
        with jax.named_scope("head"):
            scores = jax.nn.log_softmax(data @ weights["table"].T)
        return -jnp.mean(jnp.take_along_axis(scores, tokens[..., None], -1))

    @jax.jit
    def train_step(weights, tokens):
        value, slopes = jax.value_and_grad(loss)(weights, tokens)
        with jax.named_scope("optimizer"):
            return jax.tree.map(lambda leaf, slope: leaf - 0.01 * slope, weights, slopes), value

    key = jax.random.PRNGKey(0)
    shapes = {"q": (WIDTH, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    weights = {
        "table": jax.random.normal(key, (VOCABULARY, WIDTH)) * 0.1,
        "layers": {name: jax.random.normal(key, (LAYERS, *shape)) * 0.1 for name, shape in shapes.items()},
    }
    tokens = jnp.zeros((BATCH * given.devices, SEQUENCE), jnp.int32)
    if given.devices > 1:
        mesh = jax.make_mesh((given.devices,), ("data",))
        tokens = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("data")))
        weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    for _ in range(2):
        weights, value = train_step(weights, tokens)
    jax.block_until_ready(weights)
    walls = []
    with jax.profiler.trace(given.directory):
        for number in range(given.steps):
            began = time.perf_counter()

            def step(weights):
                with jax.profiler.TraceAnnotation("input"):
                    time.sleep(given.input_ms / 1000)
                weights, value = train_step(weights, tokens)
                if not given.no_wait:
                    jax.block_until_ready(weights)
                return weights

            if given.no_marks:
                weights = step(weights)
            else:
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    weights = step(weights)
            walls.append((time.perf_counter() - began) * 1000)
        jax.block_until_ready(weights)
    rows = BATCH * SEQUENCE
    of_layer = 2 * rows * (WIDTH * WIDTH + 2 * SEQUENCE * WIDTH + 2 * WIDTH * HIDDEN)
    forward = LAYERS * of_layer + 2 * rows * WIDTH * VOCABULARY
    if given.slow_layer is not None:
        forward += 12 * 2 * rows * 2 * WIDTH * HIDDEN
    print(json.dumps({"wall_ms": walls, "forward_flops": forward}))


if __name__ == "__main__":
    main()
