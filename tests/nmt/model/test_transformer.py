import math

import numpy as np
import pytest
import torch
from plain import padded, plain_loss
from torch import nn
from toy_runs import small_config

from multidds.nmt.batches.batch import Batch, Rows, assemble, packed
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.model.transformer import Layout, ScaleNorm, Transformer, make_model, sinusoids
from multidds.nmt.prepare import Prepared

SETTINGS = {
    "encoder_layers": 2, "decoder_layers": 2, "width": 16, "inner": 24, "heads": 4, "dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "norm": "scale",
}  # fmt: skip


@pytest.fixture
def sentences(corpus, monkeypatch):
    config = small_config(corpus, monkeypatch)
    prepared = Prepared(config)
    return Sentences(prepared, "shift-base", "train"), make_model(config, prepared.vocabulary)


def test_padding_never_changes_a_loss(sentences):
    data, model = sentences
    model.eval()
    items = [(data, i) for i in range(12)]
    one_by_one = sum(model(assemble([item]), 0.1).item() for item in items)
    assert model(assemble(items), 0.1).item() == pytest.approx(one_by_one, rel=1e-5)


def test_gradients_of_a_batch_are_the_sum_of_those_of_its_sentences(sentences):
    data, model = sentences
    model.eval().double()
    items = [(data, i) for i in range(6)]

    def gradient(batches):
        model.zero_grad()
        for batch in batches:
            model(batch, 0.1).backward()
        return torch.cat([p.grad.reshape(-1) for p in model.parameters()])

    together, apart = gradient([assemble(items)]), gradient([assemble([item]) for item in items])
    assert torch.allclose(together, apart, rtol=1e-10, atol=1e-12)


def test_label_smoothing_is_the_formula(sentences):
    data, model = sentences
    model.eval()
    batch = assemble([(data, 3), (data, 8)])
    log_p = torch.log_softmax(model.logits(batch), dim=-1)
    likelihood = log_p[torch.arange(batch.tokens), batch.target_out]
    expected = -(0.9 * likelihood + 0.1 * log_p.mean(-1)).sum().item()
    assert model(batch, 0.1).item() == pytest.approx(expected, rel=1e-5)


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


def test_attention_is_the_formula():
    torch.manual_seed(0)
    model = Transformer(20, 20, 12, **SETTINGS).eval()
    attention = model.decoder[0].cross_attention
    targets, sources = Rows.of([3, 2]), Rows.of([3, 5])
    x, memory = torch.randn(5, 16), torch.randn(8, 16)
    found = attention.to_encoder(x, Layout(targets, 4, x, (1,)), memory, Layout(sources, 4, x, (2,)))
    q, k, v = attention.query(x), *attention.key_value(memory).chunk(2, dim=-1)
    for own, its in ((slice(0, 3), slice(0, 3)), (slice(3, 5), slice(3, 8))):  # one sentence and the other
        heads = []
        for h in range(4):
            part = slice(4 * h, 4 * h + 4)
            scores = q[own, part] @ k[its, part].T / 2.0
            heads.append(scores.softmax(-1) @ v[its, part])
        assert torch.allclose(found[own], attention.out(torch.cat(heads, dim=-1)), atol=1e-6)


def test_no_position_sees_a_later_one_and_all_see_the_source():
    torch.manual_seed(0)
    model = Transformer(20, 20, 12, **SETTINGS).eval()
    source, target = np.arange(5, 11), np.arange(6, 13)
    hidden = model.hidden(packed([source], [target]))  # [<s> and 7 tokens, D]
    changed = target.copy()
    changed[3] += 1  # the fifth token of target_in
    other = model.hidden(packed([source], [changed]))
    assert torch.allclose(hidden[:4], other[:4], atol=1e-6)
    assert not torch.allclose(hidden[4], other[4], atol=1e-3)
    source[5] += 1
    assert not torch.allclose(hidden[0], model.hidden(packed([source], [target]))[0], atol=1e-4)


@pytest.mark.parametrize("norm", ["scale", "layer"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_loss_and_every_gradient_are_those_of_the_plain_version(norm, dtype, tolerance):
    """Padded, with torch's own functions: the baseline of benchmarks/train_speed/plain.py."""
    torch.manual_seed(0)
    model = Transformer(60, 70, 40, **{**SETTINGS, "norm": norm}).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # no zero bias, no g that is the same everywhere
            parameter += 0.1 * torch.randn_like(parameter)
    rng = np.random.default_rng(1)
    sides = [[rng.integers(3, 60, rng.integers(1, 30)) for _ in range(9)] for _ in range(2)]
    batch = packed(*sides)

    def gradients(loss):
        model.zero_grad()
        (0.37 * loss).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    for smoothing in (0.0, 0.1):
        ours, plain = model(batch, smoothing), plain_loss(model, padded(batch), smoothing)
        assert ours.dtype == dtype
        assert ours.item() == pytest.approx(plain.item(), rel=tolerance)
        expected = gradients(plain)
        for name, gradient in gradients(ours).items():
            scale = expected[name].abs().max().item()
            assert torch.allclose(gradient, expected[name], rtol=tolerance, atol=tolerance * scale), name
        with torch.no_grad():
            assert model(batch, smoothing).item() == ours.item()


def test_dropout_acts_at_every_place_and_is_a_function_of_the_seed():
    """Each rate alone changes a training loss; the mean over seeds of a small rate is near the loss without."""
    batch = packed([np.arange(5, 15)] * 4, [np.arange(5, 12)] * 4)
    for place in ("dropout", "attention_dropout", "activation_dropout"):
        torch.manual_seed(0)
        model = Transformer(20, 20, 20, **{**SETTINGS, place: 0.05})

        def loss(seed, model=model):
            torch.manual_seed(seed)
            return model(batch, 0.1).item()

        assert loss(1) == loss(1) != loss(2)
        losses = [loss(seed) for seed in range(40)]
        model.eval()
        assert loss(1) == loss(2)
        assert sum(losses) / 40 == pytest.approx(loss(1), rel=0.05)


@pytest.mark.bfloat16
def test_bfloat16_is_near_float32():
    torch.manual_seed(0)
    model = Transformer(20, 20, 20, **SETTINGS)
    batch = packed([np.arange(5, 15), np.arange(5, 9)], [np.arange(5, 12), np.arange(6, 18)])
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = model(batch, 0.1)
        loss.backward()
        assert loss.dtype == torch.float32
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99


def test_a_step_never_asks_for_a_value():
    """On the meta device there are none: what branches on a tensor, or reads one, fails."""
    with torch.device("meta"):
        model = Transformer(20, 20, 20, **{**SETTINGS, "dropout": 0.1, "attention_dropout": 0.1})
    batch = packed([np.arange(5, 15), np.arange(5, 9)], [np.arange(5, 12), np.arange(6, 18)])
    rows = (r.moved(lambda t: t.to("meta")) for r in (batch.source_rows, batch.target_rows))
    tokens = (t.to("meta") for t in (batch.source, batch.target_in, batch.target_out))
    loss = model(Batch(*tokens, *rows, ()), 0.1)
    loss.backward()
    assert loss.is_meta
    assert all(p.grad.is_meta for p in model.parameters())


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


@pytest.mark.filterwarnings("default")  # torch's compiler warns of what it does itself
@pytest.mark.slow
def test_compiled_layers_are_the_same_and_are_compiled_once_for_all_shapes(corpus, monkeypatch):
    """By the expressions of other devices than the CPU. Backend "eager": what is read, not what is made "
    "of it."""
    config = small_config(corpus, monkeypatch, "model.dropout=0", "model.attention_dropout=0", "model.norm=scale")
    config = config.model_copy(update={"model": config.model.model_copy(update={"activation_dropout": 0.0})})
    prepared = Prepared(config)
    sentences = Sentences(prepared, config.data.names[0], "train")
    plain, compiled = (make_model(config, prepared.vocabulary) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    compiled.compile_layers(backend="eager")
    for i in range(4):
        batch = assemble([(sentences, j) for j in range(i, 5 + 9 * i)])
        losses = [model(batch, 0.1) for model in (plain, compiled)]
        for loss in losses:
            loss.backward()
        assert torch.allclose(*losses, rtol=1e-5)
        if i == 1:
            torch.compiler.set_stance("fail_on_recompile")
    torch.compiler.set_stance("default")
    for (name, p), q in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-4), name
