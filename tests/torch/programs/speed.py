import sys, time
import torch, torch.distributed as dist
import harp.torch
dist.init_process_group("gloo")
r, n = dist.get_rank(), dist.get_world_size()
groups = {"gloo": dist.new_group(backend="gloo"), "harp": dist.new_group(backend="harp")}
def run(g, x, k):
    dist.barrier(group=groups["gloo"])
    t=time.perf_counter()
    for _ in range(k): dist.all_reduce(x, group=g)
    return (time.perf_counter()-t)/k
for size, k in ((8, 200), (4096, 200), (65536, 100), (1<<20, 30), (25<<20, 3)):
    x = torch.ones(size//4)
    best = {}
    allr = {"gloo":[], "harp":[]}
    for rnd in range(6):
        for name, g in groups.items():
            allr[name].append(run(g, x, k)); x.fill_(1)
    if r == 0: print(size, {m: f"min {min(v)*1e6:.0f} med {sorted(v)[3]*1e6:.0f}" for m, v in allr.items()}, "ratio", sorted(allr["gloo"])[3]/sorted(allr["harp"])[3], flush=True)
dist.destroy_process_group()
