"""A policy and its target network: before each step an action is chosen without gradients."""

import random
from collections import deque

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)


class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, x):
        return self.layer3(torch.relu(self.layer2(torch.relu(self.layer1(x)))))


policy, target = Q(), Q()
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), 1e-4, amsgrad=True)
memory = deque(maxlen=1000)
state = torch.randn(1, 4)
for step in range(80):
    with torch.no_grad():
        action = policy(state).max(1).indices.view(1, 1)
    following = torch.randn(1, 4)
    memory.append((state, action, following, torch.tensor([float(step % 3)])))
    state = following
    if len(memory) < 16:
        continue
    states, actions, next_states, rewards = map(torch.cat, zip(*random.sample(memory, 16), strict=True))
    values = policy(states).gather(1, actions)
    with torch.no_grad():
        expected = rewards + 0.9 * target(next_states).max(1).values
    loss = nn.functional.smooth_l1_loss(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    for mine, theirs in zip(target.parameters(), policy.parameters(), strict=True):
        mine.data.lerp_(theirs.data, 0.005)
print(f"loss {loss.item():.4f}")
