"""Balancing inside trainers: something that draws, and a callback that updates; the trainer stays as it is.

| trainer | package | draws | updates |
|---|---|---|---|
| Hugging Face Trainer | `huggingface` | `MixedDataset` | `BalanceCallback` |
| TRL | `trl` | `balance` | `balance` |
| sentence-transformers | `sentence_transformers` | `mixed_batches` | `BalanceCallback` |
| Lightning | `lightning` | `mixed_loader` | `BalanceCallback` |

Each package needs the library of its trainer, so none is imported here.
"""
