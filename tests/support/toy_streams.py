"""A stream that can be mixed, sharded and resumed."""

from torch.utils.data import IterableDataset, get_worker_info


class Flow(IterableDataset):
    """A stream that shards itself, reshuffles by the pass and keeps its place."""

    def __init__(self, name, size, num_shards=4):
        self.name, self.size, self.num_shards = name, size, num_shards
        self.epoch, self.place, self.start = 0, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        mine = list(range(self.size))
        if info is not None:
            mine = [i for i in mine if i % self.num_shards % info.num_workers == info.id]
        self.place, self.start = self.start, 0
        for i in mine[self.place :]:
            self.place += 1
            yield f"{self.name}{i}p{self.epoch}"

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.start = state["place"]
