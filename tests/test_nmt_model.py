import math

import pytest
import torch
from torch import nn
from toy_runs import small_config

from multidds.nmt.batches import Sentences, assemble
from multidds.nmt.model import ScaleNorm, Transformer, sinusoids, summed_loss
from multidds.nmt.prepare import Prepared
from multidds.nmt.train import learning_rate, model_of
from multidds.nmt.translate import _sinusoids

SETTINGS = {
    "encoder_layers": 2, "decoder_layers": 2, "width": 16, "inner": 24, "heads": 4, "dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "norm": "scale",
}  # fmt: skip


@pytest.fixture
def sentences(corpus, monkeypatch):
    config = small_config(corpus, monkeypatch)
    prepared = Prepared(config)
    return Sentences(config, prepared, "shift-base", "train"), model_of(config, prepared)


def test_padding_never_changes_a_loss(sentences):
    data, model = sentences
    model.eval()
    items = [(data, i) for i in range(12)]
    one_by_one = sum(summed_loss(model, assemble([item]), 0.1).item() for item in items)
    assert summed_loss(model, assemble(items), 0.1).item() == pytest.approx(one_by_one, rel=1e-5)


def test_gradients_of_a_batch_are_the_sum_of_those_of_its_sentences(sentences):
    data, model = sentences
    model.eval().double()
    items = [(data, i) for i in range(6)]

    def gradient(batches):
        model.zero_grad()
        for batch in batches:
            summed_loss(model, batch, 0.1).backward()
        return torch.cat([p.grad.reshape(-1) for p in model.parameters()])

    together, apart = gradient([assemble(items)]), gradient([assemble([item]) for item in items])
    assert torch.allclose(together, apart, rtol=1e-4, atol=1e-5)  # the loss itself is taken in float32


def test_label_smoothing_is_the_formula(sentences):
    data, model = sentences
    model.eval()
    batch = assemble([(data, 3), (data, 8)])
    log_p = torch.log_softmax(model(batch), dim=-1)
    likelihood = log_p[torch.arange(batch.tokens), batch.target_out]
    expected = -(0.9 * likelihood + 0.1 * log_p.mean(-1)).sum().item()
    assert summed_loss(model, batch, 0.1).item() == pytest.approx(expected, rel=1e-5)


def test_scale_norm_is_g_times_the_direction():
    norm = ScaleNorm(8)
    assert norm.g.item() == pytest.approx(math.sqrt(8))
    x = torch.randn(5, 8)
    with torch.no_grad():
        norm.g.fill_(3.0)
    assert torch.allclose(norm(x), 3 * x / x.norm(dim=-1, keepdim=True), atol=1e-5)


def test_positions_are_the_formula_in_both_places():
    table = sinusoids(30, 8)
    for p in (0, 1, 7, 29):
        for i in range(4):
            angle = p / 10000 ** (i / 3)
            assert table[p, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, i + 4].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert torch.allclose(table, torch.from_numpy(_sinusoids(30, 8)), atol=1e-7)


def test_attention_is_the_formula():
    torch.manual_seed(0)
    model = Transformer(20, 20, 12, **SETTINGS).eval()
    attention = model.decoder[0].cross_attention
    x, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    q, k, v = attention.query(x), *attention.key_value(memory).chunk(2, dim=-1)
    heads = []
    for h in range(4):
        part = slice(4 * h, 4 * h + 4)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / 2.0
        heads.append(scores.masked_fill(~mask[:, None, :], -math.inf).softmax(-1) @ v[..., part])
    expected = attention.out(torch.cat(heads, dim=-1))
    assert torch.allclose(attention(x, memory, mask[:, None, None, :]), expected, atol=1e-6)


def test_no_position_sees_a_later_one_and_all_see_the_source():
    torch.manual_seed(0)
    model = Transformer(20, 20, 12, **SETTINGS).eval()
    source, target = torch.randint(0, 20, (1, 6)), torch.randint(0, 20, (1, 7))
    hidden = model.decode(target, model.encode(source, None), None)
    changed = target.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 20
    other = model.decode(changed, model.encode(source, None), None)
    assert torch.allclose(hidden[:, :4], other[:, :4], atol=1e-6)
    assert not torch.allclose(hidden[:, 4], other[:, 4], atol=1e-3)
    source[0, 5] = (source[0, 5] + 1) % 20
    assert not torch.allclose(hidden[:, 0], model.decode(target, model.encode(source, None), None)[:, 0], atol=1e-4)


def test_the_decoder_is_tied_and_the_encoder_apart():
    model = Transformer(20, 30, 12, **SETTINGS)
    assert model.source_embedding.weight.shape == (20, 16)
    names = dict(model.named_parameters())
    assert sum("embedding" in name for name in names) == 2
    assert sum(p.numel() for p in names.values()) == sum(t.numel() for t in model.state_dict().values())


def test_every_part_of_a_projection_is_initialised_for_itself():
    torch.manual_seed(0)
    model = Transformer(20, 30, 12, **{**SETTINGS, "width": 128})
    layer = model.decoder[0]
    bound = math.sqrt(6 / (128 + 128))
    for weight, parts, gain in (
        (layer.self_attention.query_key_value.weight, 3, 2**-0.5),
        (layer.cross_attention.key_value.weight, 2, 2**-0.5),
        (layer.cross_attention.query.weight, 1, 2**-0.5),
        (layer.cross_attention.out.weight, 1, 1.0),
    ):
        for part in weight.chunk(parts):
            assert 0.98 * gain * bound < part.abs().max().item() <= gain * bound


def test_layer_norm_is_an_option():
    model = Transformer(20, 30, 12, **{**SETTINGS, "norm": "layer"})
    assert isinstance(model.encoder_norm, nn.LayerNorm)


def test_the_learning_rate_warms_up_and_then_falls_with_the_root_of_the_step():
    rates = [learning_rate(2e-4, 4000, 1e-7, step) for step in (1, 2000, 4000, 16000)]
    assert rates == pytest.approx([1e-7 + (2e-4 - 1e-7) / 4000, (2e-4 + 1e-7) / 2, 2e-4, 1e-4])
    assert learning_rate(1e-3, 0, 0.0, 4) == pytest.approx(5e-4)
