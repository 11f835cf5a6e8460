import pytest
import torch
from hypothesis import settings

# The machines that run this are small and noisy: no deadline, and the same examples every time.
settings.register_profile("multidds", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("multidds")


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in one order: bit-for-bit comparisons need it."""
    torch.set_num_threads(1)
