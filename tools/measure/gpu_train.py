# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training of VGG16 with random images, a part of a rank of tools/gpu.

Its 138 million parameters are 553 MB of gradients in each step, so the network decides the speed.
Source of the model: K. Simonyan and A. Zisserman, Very Deep Convolutional Networks for Large-Scale
Image Recognition, ICLR 2015 (arXiv 1409.1556), configuration D.
"""

from __future__ import annotations

from typing import Any, Callable

BATCH = 32  # images of a rank in each step
WARMUP, STEPS = 3, 10
RATE = 1e-3  # of learning
CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
# Of gradients. The first is PyTorch's, and the others are those of harp.light.
REDUCTIONS = ("plain", "fp16", "top-k", "hvd fp16")


def vgg16(torch: Any) -> Any:
    nn = torch.nn
    layers, width = [], 3
    for block in CHANNELS:
        for channels in block:
            layers += [nn.Conv2d(width, channels, 3, padding=1), nn.ReLU(inplace=True)]
            width = channels
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for inputs, outputs in ((512 * 7 * 7, 4096), (4096, 4096)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000)).cuda()


def _by_ddp(torch: Any, reduction: str) -> tuple[Any, Any]:
    """Model and optimizer with DDP, and a hook of LightCC for a reduction that is not plain."""
    model = torch.nn.parallel.DistributedDataParallel(vgg16(torch), device_ids=[0])
    if reduction != "plain":
        import harp.light

        topk = reduction == "top-k"
        settings = harp.light.Settings(topk=topk, topk_fp16=topk)
        state = harp.light.State(settings, fp16=not topk)
        model.register_comm_hook(state, harp.light.hook)
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def _by_horovod(torch: Any) -> tuple[Any, Any]:
    """Model and optimizer with Horovod's interface, which uses the present process group."""
    import harp.light.torch as hvd

    hvd.init()
    model = vgg16(torch)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, optimizer


def _equal_on_all_ranks(torch: Any, model: Any, ranks: int) -> bool:
    total = sum(one.detach().double().sum() for one in model.parameters())
    totals = [torch.zeros_like(total) for _ in range(ranks)]
    torch.distributed.all_gather(totals, total)
    return bool(all(one == totals[0] for one in totals) and totals[0].isfinite())


def train(torch: Any, task: dict[str, Any], reduction: str, say: Callable[..., None]) -> None:
    """Prints a document: images per second of all ranks, and whether the ranks' models are equal
    and finite."""
    torch.manual_seed(1)
    model, optimizer = _by_horovod(torch) if "hvd" in reduction else _by_ddp(torch, reduction)
    torch.manual_seed(100 + task["rank"])
    images = torch.randn(BATCH, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (BATCH,), device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for step in range(WARMUP + STEPS):
        if step == WARMUP:
            begin.record()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    end.record()
    torch.cuda.synchronize()
    step_ms = begin.elapsed_time(end) / STEPS
    speed = BATCH * task["ranks"] / step_ms * 1e3
    same = _equal_on_all_ranks(torch, model, task["ranks"])
    say("trained", reduction=reduction, step_ms=step_ms, images_per_s=speed, same=same)
