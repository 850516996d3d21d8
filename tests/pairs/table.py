"""Trainings with one fault each, and the edit that fixes it: what a card has to name, and what fixing it brings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).parent / "scripts"


class Pair(NamedTuple):
    """A faulty script, the rules that name its fault, and how it is fixed: texts to replace, each found once."""

    name: str
    rules: frozenset[str]
    edits: tuple[tuple[str, str], ...]
    processes: int = 1

    def texts(self) -> dict[str, str]:
        """Return the faulty and the fixed script."""
        faulty = fixed = (SCRIPTS / f"{self.name}.py").read_text(encoding="utf-8")
        for old, new in self.edits:
            if faulty.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} is there {faulty.count(old)} times")
            fixed = fixed.replace(old, new)
        return {"faulty": faulty, "fixed": fixed}


def _pair(name: str, rules: str, *edits: tuple[str, str], processes: int = 1) -> Pair:
    return Pair(name, frozenset(rules.split()), edits, processes)


PAIRS = (
    _pair("float64_by_mistake", "fp64-matmuls", ("(4096, 512)))", "(4096, 512)).astype(np.float32))"),
          ("(4096, 1)))", "(4096, 1)).astype(np.float32))")),
    _pair("generator_not_detached", "unused-gradients", ("discriminator(fake), zeros", "discriminator(fake.detach()), zeros")),
    _pair("micro_batches_of_four", "small-micro-batches python-loop tiny-gemms",
          ("micro_batches, micro_batch = 32, 4", "micro_batches, micro_batch = 1, 128")),
    _pair("dense_embedding_gradients", "dense-embedding-gradients heavy-embedding",
          ("nn.Embedding(items, width)", "nn.Embedding(items, width, sparse=True)")),
    _pair("prints_every_step", "host-stall host-phases python-overhead frequent-printing",
          ("    print(f", "    if step % 10 == 0:\n        print(f")),
    _pair("sync_in_every_micro_batch", "sync-every-micro-batch",
          ("        loss.backward()", "        with contextlib.nullcontext() if turn == micro_batches - 1 else model.no_sync():\n            loss.backward()"),
          ("import torch\nimport", "import contextlib\n\nimport torch\nimport"), processes=2),
    _pair("tiny_buckets", "small-messages", (", bucket_cap_mb=0.01", ""), processes=2),
    _pair("tiny_fsdp_units", "small-messages",
          ("    for layer in block:\n        if isinstance(layer, nn.Linear):\n            fully_shard(layer, mesh=mesh)\n",
           "    fully_shard(block, mesh=mesh)\n"), processes=2),
    _pair("loop_over_time", "python-loop",
          ("nn.LSTMCell(32, 64)", "nn.LSTM(32, 64, batch_first=True)"),
          ("        hidden = memory = sequence.new_zeros(len(sequence), 64)\n", "        states, _ = self.cell(sequence)\n"),
          ("        for time in range(sequence.shape[1]):\n            hidden, memory = self.cell(sequence[:, time], (hidden, memory))\n        return self.head(hidden)",
           "        return self.head(states[:, -1])")),
    _pair("loop_over_experts", "python-loop",
          (("        for expert in range(experts):\n            mine = (chosen == expert).nonzero().squeeze(-1)\n            if len(mine):\n"
           "                out[mine] = (tokens[mine] @ self.up[expert]).relu() @ self.down[expert]\n"),
           ("        order = chosen.argsort()\n        counts = torch.bincount(chosen, minlength=experts)\n        most = int(counts.max())\n"
           "        slot = torch.arange(len(order)) - (counts.cumsum(0) - counts)[chosen[order]]\n"
           "        packed = tokens.new_zeros(experts, most, width).index_put((chosen[order], slot), tokens[order])\n"
           "        packed = torch.bmm(torch.bmm(packed, self.up).relu(), self.down)\n"
           "        out = out.index_put((order,), packed[chosen[order], slot])\n"))),
    _pair("loop_over_edges", "python-loop",
          ("        for source, target in edges.tolist():\n            received[target] = received[target] + messages[source]\n",
           "        received = received.index_add(0, edges[:, 1], messages[edges[:, 0]])\n")),
    _pair("attention_written_out", "unfused-attention math-attention",
          (('        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n        scores = scores.masked_fill(~self.mask, float("-inf"))\n'
           "        return scores.softmax(-1) @ v"),
           "        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)")),
    _pair("slow_images", "loader-on-main-thread starved-loader input-wait",
          ("batch_size=16)", "batch_size=16, num_workers=2, prefetch_factor=8)")),
    _pair("tokenises_every_epoch", "loader-on-main-thread starved-loader input-wait",
          ("        self.texts = texts\n", "        self.texts = [tokenise(text) for text in texts]\n"),
          ("tokenise(self.texts[index])", "self.texts[index]")),
    _pair("tensor_by_tensor", "single-tensor-optimizer heavy-optimizer", ("foreach=False", "fused=True")),
    _pair("average_in_a_loop", "python-loop single-tensor-average",
          ("    for kept, new in zip(average.parameters(), model.parameters(), strict=True):\n        kept.data = 0.999 * kept.data + 0.001 * new.data\n",
           "    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)\n")),
    _pair("clips_in_a_loop", "python-loop scalar-read-loop",
          (("    total = 0.0\n    for weight in model.parameters():\n        total += (weight.grad**2).sum().item()\n    if total**0.5 > most:\n"
           "        for weight in model.parameters():\n            weight.grad = weight.grad * (most / total**0.5)\n"),
           "    nn.utils.clip_grad_norm_(model.parameters(), most, foreach=True)\n")),
    _pair("accuracy_in_python", "python-loop scalar-read-loop",
          ("    correct = 0\n    for row, label in zip(logits, labels, strict=True):\n        if row.argmax() == label:\n            correct += 1\n    return correct / len(labels)",
           "    return (logits.argmax(-1) == labels).float().mean().item()")),
    _pair("checkpoint_every_step", "slow-checkpoints host-stall host-phases", ("step % 1 == 0", "step % 100 == 99")),
    _pair("recomputes_activations", "recomputed-forward", ("checkpoint(block, x, use_reentrant=False)", "block(x)")),
    _pair("validates_too_often", "long-evaluations", ("every = 1", "every = 20")),
    _pair("collects_garbage", "host-stall host-phases garbage-collection python-overhead", ("    gc.collect()\n", "")),
    _pair("anomaly_detection_left_on", "anomaly-detection", ("set_detect_anomaly(True)", "set_detect_anomaly(False)")),
    _pair("one_hot_product", "one-hot-operation one-hot-product",
          ("nn.functional.one_hot(ids, vocabulary).float() @ self.table", "nn.functional.embedding(ids, self.table)")),
    _pair("copies_between_layouts", "device-copies layout-conversions",
          ("        x = x.transpose(1, 2).contiguous()\n        x = self.mix(self.norm(x))\n        x = x.transpose(1, 2).contiguous()\n",
           "        x = self.mix(self.norm(x))\n"),
          ("torch.randn(16, channels, length)", "torch.randn(16, channels, length).transpose(1, 2).contiguous()"),
          ("model(inputs).mean(2)", "model(inputs).mean(1)")),
    _pair("augments_in_python", "loader-on-main-thread starved-loader input-wait",
          ("    return torch.tensor([[min(1.0, pixel * factor) for pixel in row] for row in image[0].tolist()])[None]",
           "    return (image * factor).clamp(max=1.0)")),
    _pair("mask_built_in_python", "python-loop",
          ("        mask = causal_mask(x.shape[1])\n", ""),
          ("attn_mask=mask", "is_causal=True")),
    _pair("norm_written_out", "elementwise-chains hand-written-norm",
          (("        mean = x.mean(-1, keepdim=True)\n        variance = ((x - mean) ** 2).mean(-1, keepdim=True)\n"
           "        return (x - mean) / torch.sqrt(variance + 1e-5) * self.scale + self.shift"),
           "        return nn.functional.layer_norm(x, (width,), self.scale, self.shift)"),
          ("    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))",
           '    return nn.functional.gelu(x, approximate="tanh")')),
    _pair("late_rank", "straggler-rank", ("        time.sleep(0.04)", "        time.sleep(0.0)"), processes=2),
    _pair("reduces_tensor_by_tensor", "small-messages",
          ("    for weight in model.parameters():\n        dist.all_reduce(weight.grad)\n        weight.grad /= dist.get_world_size()\n",
           ("    flat = torch.cat([weight.grad.flatten() for weight in model.parameters()])\n    dist.all_reduce(flat)\n"
           "    flat /= dist.get_world_size()\n    parts = flat.split([weight.numel() for weight in model.parameters()])\n"
           "    for weight, part in zip(model.parameters(), parts, strict=True):\n        weight.grad = part.view_as(weight)\n")), processes=2),
    _pair("uneven_stages", "slow-stage straggler-rank uneven-ranks", ("[2, 14]", "[8, 8]"), processes=2),
    _pair("batch_from_lists", "host-stall host-phases python-overhead",
          ("rows = [[random.random() for _ in range(256)] for _ in range(4096)]", "rows = torch.tensor([[random.random() for _ in range(256)] for _ in range(4096)])"),
          ("torch.tensor([rows[index] for index in chosen])", "rows[chosen]")),
    _pair("histograms_every_step", "host-stall host-phases logging-every-step", ("every = 1", "every = 20")),
    _pair("copies_best_weights", "host-stall host-phases", ('float("inf"), 1', 'float("inf"), 20')),
    _pair("metrics_synced_to_disk", "host-stall host-phases", ("every, metrics = 1", "every, metrics = 20")),
    _pair("forward_twice", "forward-repeated",
          ("    loss = nn.functional.cross_entropy(model(inputs), labels)\n    right = (model(inputs).argmax(-1)",
           "    logits = model(inputs)\n    loss = nn.functional.cross_entropy(logits, labels)\n    right = (logits.argmax(-1)")),
    _pair("padded_to_the_longest", "padding",
          ("pad(batch, longest)", "pad(batch, max(map(len, batch)))")),
)  # fmt: skip
