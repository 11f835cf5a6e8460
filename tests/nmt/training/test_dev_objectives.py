"""The objectives of dev sets: against validation's measures, by finite differences, and blind to "
"mere confidence."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from multidds.nmt.batches.batch import packed
from multidds.nmt.model import kernels
from multidds.nmt.model.transformer import Transformer
from multidds.nmt.training.dev_objectives import OBJECTIVES, fitted_scale
from multidds.nmt.training.validation import ngram_counts, ngram_sums
from multidds.nmt.training.validation import soft_bleu as measured_soft_bleu

CALIBRATED = ("accuracy", "soft-bleu")


@pytest.fixture
def model():
    torch.manual_seed(1)
    model = Transformer(9, 9, 12, encoder_layers=1, decoder_layers=1, width=8, inner=8, heads=2, dropout=0.0,
                        attention_dropout=0.0, activation_dropout=0.0, norm="scale").double()  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):  # so that a fitted temperature is neither 0 nor infinite
        optimizer.zero_grad()
        sum(model(part, 0.1) for part in parts(seed=0)).backward()
        optimizer.step()
    model.zero_grad()
    return model


def parts(seed):
    rng = np.random.default_rng(seed)
    batches = []
    for lengths in ((1, 5, 3), (7, 4)):
        sentences = [rng.integers(3, 9, size=n) for n in lengths]
        targets = [np.where(rng.random(len(s)) < 0.8, (s - 2) % 6 + 3, rng.integers(3, 9)) for s in sentences]
        batches.append(packed(sentences, targets))
    return batches


def scaled(model, factor):
    """The same choices with other confidence: all logits times a factor, and so the norm before them."""
    with torch.no_grad():
        model.decoder_norm.g *= factor
    return model


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_gradients_are_finite_differences(model, kind):
    objective, batches = OBJECTIVES[kind], parts(seed=1)
    objective(model, batches).backward()
    for parameter in (model.decoder_norm.g, model.decoder[0].inner.weight, model.source_embedding.weight):
        direction = torch.randn_like(parameter)
        ends = []
        for side in (1e-4, -2e-4):
            with torch.no_grad():
                parameter += side * direction
            ends.append(objective(model, batches).item())
        with torch.no_grad():
            parameter += 1e-4 * direction
        found = (parameter.grad * direction).sum().item()
        assert found == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("kind", CALIBRATED)
@pytest.mark.parametrize("factor", [0.3, 1.7])
def test_mere_confidence_moves_neither_the_value_nor_any_step(model, kind, factor):
    objective, batches = OBJECTIVES[kind], parts(seed=1)
    value = objective(model, batches)
    value.backward()
    assert model.decoder_norm.g.grad.item() == pytest.approx(0, abs=1e-8)  # more of g is only more confidence
    others = {name: p.grad.clone() for name, p in model.named_parameters() if name.startswith("encoder.")}
    model.zero_grad()
    again = objective(scaled(model, factor), batches)
    assert again.item() == pytest.approx(value.item(), rel=1e-8)
    again.backward()
    for name, gradient in others.items():
        assert torch.allclose(model.get_parameter(name).grad, gradient, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", CALIBRATED)
def test_at_a_temperature_held_fixed_confidence_counts(model, kind):
    OBJECTIVES[kind](model, parts(seed=1), temperature=1.0).backward()
    assert abs(model.decoder_norm.g.grad.item()) > 1e-4


def test_objectives_are_the_negative_measures_at_the_fitted_temperature(model):
    batches = parts(seed=1)
    hidden = torch.cat([model.hidden(part) for part in batches]).detach()
    target = torch.cat([part.target_out for part in batches])
    scale = fitted_scale(hidden, model.target_embedding.weight, target)
    _, log_p, _ = kernels.token_scores(hidden * scale, model.target_embedding.weight, target)
    positions = torch.cat([part.target_rows.positions for part in batches])
    sums = [x.item() for x in ngram_sums(log_p, positions)]
    counts = ngram_counts(np.array([2, 6, 4, 8, 5]))
    assert OBJECTIVES["accuracy"](model, batches).item() == pytest.approx(-sums[0] / counts[0])
    assert OBJECTIVES["soft-bleu"](model, batches).item() == pytest.approx(-measured_soft_bleu(sums, counts))
    fixed = OBJECTIVES["accuracy"](model, batches, temperature=1 / scale)
    assert fixed.item() == pytest.approx(-sums[0] / counts[0])
    _, log_p, _ = kernels.token_scores(hidden, model.target_embedding.weight, target)
    assert OBJECTIVES["expected-accuracy"](model, batches).item() == pytest.approx(-log_p.exp().mean().item())
    mean = sum(model(part, 0.0) for part in batches) / counts[0]
    assert OBJECTIVES["loss"](model, batches).item() == pytest.approx(mean.item())


def test_the_fitted_temperature_has_the_lowest_loss():
    torch.manual_seed(0)
    hidden, weight, target = torch.randn(50, 4), torch.randn(7, 4), torch.randint(0, 7, (50,))
    target[:35] = (hidden @ weight.T).argmax(-1)[:35]
    scale = fitted_scale(hidden, weight, target)
    assert 1 / 20 < scale < 20
    factors = (scale, 0.98 * scale, 1.02 * scale)
    losses = [kernels.summed_cross_entropy(hidden * f, weight, target, 0.0).item() for f in factors]
    assert losses[0] == min(losses)
    assert fitted_scale(hidden * 3, weight, target) == pytest.approx(scale / 3, rel=1e-4)


def test_a_model_that_is_always_or_never_right_has_a_bounded_temperature():
    torch.manual_seed(0)
    hidden, weight = torch.randn(30, 4), torch.randn(7, 4)
    logits = hidden @ weight.T
    assert fitted_scale(hidden, weight, logits.argmax(-1)) == 20
    assert fitted_scale(hidden, weight, logits.argmin(-1)) == 1 / 20
    for target in (logits.argmax(-1), logits.argmin(-1)):  # overflow and underflow
        assert 1 / 20 <= fitted_scale(hidden * 1e4, weight, target) <= 20


@pytest.mark.parametrize("chunk", [3, 2**22])
def test_token_probabilities_and_entropies_have_their_gradients(monkeypatch, chunk):
    monkeypatch.setattr(kernels, "_LOGITS", 5 * chunk)
    torch.manual_seed(0)
    hidden = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 5, (8,))
    log_p = (hidden @ weight.T).log_softmax(-1)
    correct, entropy = kernels.token_log_p(hidden, weight, target)
    assert torch.allclose(correct, log_p[torch.arange(8), target])
    assert torch.allclose(entropy, -(log_p.exp() * log_p).sum(-1))
    assert gradcheck(lambda h, w: kernels.token_log_p(h, w, target), (hidden, weight))
    f = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = -(f * (hidden @ weight.T)).log_softmax(-1)[torch.arange(8), target].sum()
    (first,) = torch.autograd.grad(loss, f, create_graph=True)
    (second,) = torch.autograd.grad(first, f)
    found = kernels.confidence_slope(hidden.detach(), weight.detach(), target)
    assert [x.item() for x in found] == pytest.approx([first.item(), second.item()])


def test_half_precision_scores_are_close():
    torch.manual_seed(0)
    hidden, weight, target = torch.randn(20, 8), torch.randn(11, 8), torch.randint(0, 11, (20,))
    wide = kernels.token_scores(hidden, weight, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = kernels.token_scores(hidden, weight, target)
        log_p, _ = kernels.token_log_p(hidden, weight, target)
    assert narrow[0].dtype == narrow[1].dtype == log_p.dtype == torch.float32
    assert torch.allclose(narrow[1], wide[1], atol=0.1)
    assert torch.allclose(log_p, narrow[1])
