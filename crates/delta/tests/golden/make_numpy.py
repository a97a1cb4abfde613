"""Writes numpy.json: errors that a numpy implementation of the methods reaches on matrices made by a fixed rule.

Usage: python make_numpy.py PATH/TO/delta_methods.py
The module must have compress(dW, C, budget_bits, …), lowrank, deltacome_split, gptq, rel_err.
"""
import importlib.util
import json
import sys

import numpy as np

spec = importlib.util.spec_from_file_location("methods", sys.argv[1])
m = importlib.util.module_from_spec(spec)
spec.loader.exec_module(m)


def noise(count, seed):
    """The rule, repeated in Rust: a 64-bit linear congruential generator, its high bits as uniform in [-1, 1)."""
    out, state = np.empty(count), seed
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = (state >> 40) / 2**23 - 1
    return out


def case(outputs, inputs, seed):
    """A difference with falling singular values, and second moments with falling variances."""
    rank = min(outputs, inputs)
    left, right = noise(outputs * rank, seed).reshape(outputs, rank), noise(rank * inputs, seed + 1).reshape(rank, inputs)
    delta = ((left * (np.arange(rank) + 1.0) ** -0.8) @ right).astype(np.float32)
    x = noise(4 * inputs * inputs, seed + 2).reshape(4 * inputs, inputs)
    mix = noise(inputs * inputs, seed + 3).reshape(inputs, inputs)
    x = (x * (np.arange(inputs) + 1.0) ** -0.5) @ mix
    return delta, x.T @ x / len(x)


cases = []
for outputs, inputs, seed in [(96, 160, 1), (200, 72, 2), (136, 264, 3)]:
    delta, c = case(outputs, inputs, seed)
    budget = outputs * inputs * 16 / 12 + 200  # room for the singular values that numpy does not count
    run = lambda **k: m.rel_err(delta, m.compress(delta, c, budget, **k), c)
    V = m.factors(delta, c, False, min(outputs, inputs))[2]
    cases.append({
        "outputs": outputs, "inputs": inputs, "seed": seed, "budget_bits": int(budget),
        "prinmix": run(), "best": run(whiten=True),
        "delta_come": run(fixed=m.deltacome_split(), rtc=False),
        "low_rank": m.rel_err(delta, m.lowrank(delta, c, budget), c),
        # Mean over the first 16 rows of V of the output error that GPTQ at 3 bits leaves.
        "gptq_3": float(np.mean([d @ c @ d for d in V[:16] - m.gptq(V[:16], c, 3)])),
    })
json.dump({"cases": cases}, open("numpy.json", "w"), indent=1)
