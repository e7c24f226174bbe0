import time
t=time.time()
import torch, torch.distributed as dist
import harp.torch
print("import", time.time()-t, flush=True); t=time.time()
dist.init_process_group("harp")
print("init", time.time()-t, flush=True)
r, n = dist.get_rank(), dist.get_world_size()
for size in (1, 1000, 20000, 1000003, 8000000):
    x = torch.full((size,), float(r+1))
    t=time.time()
    dist.all_reduce(x)
    assert (x == n*(n+1)/2).all(), (size, x)
    y = torch.full((size,), float(r)); dist.broadcast(y, 1); assert (y==1).all()
    print(size, "ok", time.time()-t, flush=True)
if r == 0: dist.send(torch.arange(100000), 1, tag=5)
elif r == 1:
    z = torch.zeros(100000, dtype=torch.int64); print(dist.recv(z, 0, tag=5)); assert z[-1]==99999
dist.barrier()
x=torch.ones(2)
t=time.time()
for i in range(300): dist.all_reduce(x)
print("8 B", (time.time()-t)/300*1e6, "us")
dist.destroy_process_group()
print("end")
