import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset


class Images(Dataset):
    """Each time it is asked for, an image is flipped or not."""

    def __init__(self, size):
        self.images, self.labels = torch.rand(size, 3, 4, 4), torch.arange(size) % 5

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return {"image": image.flip(2) if torch.rand(()) < 0.5 else image, "label": self.labels[index]}


def validate(model, held_out, loader):
    """Each rank its equal share; what is left over, every rank, counted once."""
    counts = torch.zeros(2)
    model.eval()
    begin = time.perf_counter()
    with torch.no_grad():
        for batch in loader:
            right = model(batch["image"]).argmax(1) == batch["label"]
            counts += torch.tensor([right.sum().item(), len(right)])
        print(f"rank {dist.get_rank()}: {counts[0] / counts[1]:.3f} in {time.perf_counter() - begin:.3f} s")
        dist.all_reduce(counts)
        done = len(loader.sampler) * dist.get_world_size()
        for batch in DataLoader(Subset(held_out, range(done, len(held_out))), batch_size=8):
            right = model(batch["image"]).argmax(1) == batch["label"]
            counts += torch.tensor([right.sum().item(), len(right)])
    model.train()
    return (counts[0] / counts[1]).item()


def train(path):
    torch.manual_seed(0)
    data, held_out = Images(64), Images(33)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    held_out_sampler = DistributedSampler(held_out, shuffle=False, drop_last=True)
    held_out_loader = DataLoader(held_out, batch_size=8, sampler=held_out_sampler)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(32, 5)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    torch.manual_seed(100 + dist.get_rank())
    print("labels of the first batch", next(iter(loader))["label"].tolist())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = validate(model.module, held_out, held_out_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}")
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, path + ".part")
            os.rename(path + ".part", path)


dist.init_process_group("gloo")
train(os.path.join(tempfile.mkdtemp(), "classifier.pt"))
dist.destroy_process_group()
