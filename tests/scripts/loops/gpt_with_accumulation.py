"""A GPT with micro-batches, a learning rate by hand, and an estimate of the loss now and then."""

import math
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, SEQUENCE, BATCH, MICRO_STEPS, STEPS = 65, 16, 4, 3, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x):
        parts = self.attention(self.ln_1(x)).split(32, dim=2)
        q, k, v = (part.view(*part.shape[:2], 4, 8).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        parts = {"wte": nn.Embedding(VOCABULARY, 32), "wpe": nn.Embedding(SEQUENCE, 32)}
        self.transformer = nn.ModuleDict({**parts, "h": nn.ModuleList([Block() for _ in range(3)])})
        self.lm_head = nn.Linear(32, VOCABULARY, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


torch.manual_seed(1337)
data = torch.randint(0, VOCABULARY, (2000,))
model = Gpt()
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, fused=True
)
scaler = torch.amp.GradScaler("cpu", enabled=False)
context = nullcontext()


def get_batch():
    starts = torch.randint(len(data) - SEQUENCE - 1, (BATCH,)).tolist()
    x = torch.stack([data[i : i + SEQUENCE] for i in starts])
    return x, torch.stack([data[i + 1 : i + 1 + SEQUENCE] for i in starts])


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch())[1].item() for _ in range(3)]
    model.train()
    return sum(losses) / len(losses)


x, y = get_batch()
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    if step % 6 == 0:
        print(f"step {step}: estimate {estimate_loss():.4f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    started = time.time()
    for _ in range(MICRO_STEPS):
        with context:
            logits, loss = model(x, y)
            loss = loss / MICRO_STEPS
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {step}: loss {loss.item() * MICRO_STEPS:.4f}")
