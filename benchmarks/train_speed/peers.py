"""The training steps of other translation toolkits, for train_speed.py.

Each peer uses its own model class, configuration, loss, normalisation of the loss, clipping and Adam, as its own
trainer does. Sizes, dropout, smoothing, clipping and the sentences are the same for all. All have norms before the
sublayers, ReLU, and a target embedding tied to the output. Reading, batching and padding are not timed.

Hugging Face's Trainer uses fused Adam by default. The others use torch's default, which on a CPU is a loop over the
parameters. Here they get the fused one too, so that the comparison is not about this switch. fairseq keeps an Adam of
its own. JoeyNMT's loss is a divergence. It is 1.22 lower than the cross-entropy of the others, by the entropy of the
smoothed targets.

The toolkits pin old versions of torch and of each other. So install them without their pins, beside one torch:

    pip install torch==2.13.0 transformers accelerate
    pip install --no-deps joeynmt==2.3.0 eole==0.6.4 sockeye==3.1.34 OpenNMT-py==3.5.1 fasttext-wheel
    pip install configargparse ctranslate2 pyonmttok sentencepiece sacrebleu subword-nmt datasets packaging pandas
    pip install portalocker pyahocorasick pydantic pyyaml rapidfuzz sacremoses spacy tensorboard waitress flask six

    pip install --no-deps fairseq==0.12.2 hydra-core omegaconf antlr4-python3-runtime==4.9.3 bitarray  # a C++ compiler
"""

import dataclasses
import math
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from plain import padded
from torch import Tensor, nn
from workload import CLIP, DROPOUT, SMOOTHING, Workload

from multidds.nmt.batches.batch import Batch
from multidds.nmt.prepare.vocabulary import BEGIN, END

RATE = 1e-4
BETAS = (0.9, 0.98)
PAD = 0  # <unk> of ours, which a workload does not have


class Training:
    """A training step that can be checked: it keeps its model and the last loss per target token."""

    def __init__(self, model: nn.Module, run: Callable[[int], Tensor | float]) -> None:
        self.model, self.run, self.loss = model, run, math.nan

    def __call__(self, i: int) -> None:
        self.loss = self.run(i)


@dataclass(frozen=True)
class Tables:
    """A batch as the toolkits want it: padded, the target with <s> and </s>."""

    source: Tensor  # [B, S]
    source_lengths: Tensor  # [B]
    target: Tensor  # [B, T + 1]
    tokens: int

    @property
    def target_in(self) -> Tensor:
        """Without </s>, [B, T]."""
        kept = self.target.masked_fill(self.target == END, PAD)
        return kept[:, :-1].contiguous()

    @property
    def target_out(self) -> Tensor:
        """Without <s>, [B, T]."""
        return self.target[:, 1:].contiguous()


def tables(batch: Batch) -> Tables:
    rows, inputs = batch.target_rows, padded(batch)
    out = torch.full((rows.sentences * rows.longest,), PAD).index_copy(0, rows.places, batch.target_out)
    target = torch.cat([torch.full((rows.sentences, 1), BEGIN), out.view(rows.sentences, -1)], 1)
    return Tables(inputs.source, inputs.source_mask.sum((1, 2, 3)), target, batch.tokens)


def fused(optimizer: torch.optim.Optimizer) -> None:
    """Before the first step: a toolkit's own Adam made the fused one."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False


def simple(model: nn.Module, loss: Callable[[int], Tensor]) -> Training:
    """The loop one writes first, for those without a loop of their own. loss: per token."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=BETAS, fused=True)

    def run(i: int) -> Tensor:
        value = loss(i)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    return Training(model, run)


# ---------------------------------------------------------------------------------------------- Hugging Face


def _hugging_face(work: Workload, config: type, model: type, **options: Any) -> nn.Module:
    settings, sides = work.settings, {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_layers": settings[f"{side}_layers"],
            f"{side}_ffn_dim": settings["inner"],
            f"{side}_attention_heads": settings["heads"],
            f"{side}_layerdrop": 0.0,
        }
    torch.manual_seed(0)
    return model(
        config(
            vocab_size=work.words,
            d_model=settings["width"],
            max_position_embeddings=work.longest,
            dropout=DROPOUT,
            attention_dropout=DROPOUT,
            activation_dropout=DROPOUT,
            activation_function="relu",
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
            decoder_start_token_id=BEGIN,
            scale_embedding=True,
            **sides,
            **options,
        )
    ).train()


def _marian(work: Workload) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    # Its norms stand after the sublayers, it has no other way. Two embeddings, as the others have them.
    options = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": work.words}
    return _hugging_face(work, MarianConfig, MarianMTModel, **options)


def _hugging_face_loop(model: nn.Module, data: list[Batch]) -> Training:
    """The models' own loss has no smoothing: torch's instead, on the padded logits."""
    inputs = [tables(batch) for batch in data]
    given = [
        {"input_ids": t.source, "attention_mask": t.source != PAD, "decoder_input_ids": t.target_in} for t in inputs
    ]

    def loss(i: int) -> Tensor:
        logits = model(**given[i], use_cache=False).logits.flatten(0, 1)
        return F.cross_entropy(logits, inputs[i].target_out.flatten(), label_smoothing=SMOOTHING, ignore_index=PAD)

    return simple(model, loss)


def marian(work: Workload) -> Training:
    return _hugging_face_loop(_marian(work), work.batches)


def m2m100(work: Workload) -> Training:
    """Norms before the sublayers. One embedding for both sides, it has no other way: fewer parameters."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    return _hugging_face_loop(_hugging_face(work, M2M100Config, M2M100ForConditionalGeneration), work.batches)


def trainer(work: Workload) -> Training:
    """What Trainer does between taking a batch and its callbacks; loss and smoothing are Trainer's."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    model = _marian(work)
    options = Seq2SeqTrainingArguments(
        output_dir=tempfile.gettempdir(),
        label_smoothing_factor=SMOOTHING,
        max_grad_norm=CLIP,
        learning_rate=RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        use_cpu=True,
        report_to=[],
        lr_scheduler_type="constant",
    )
    peer = Seq2SeqTrainer(model=model, args=options)
    peer.create_optimizer_and_scheduler(10**6)
    wrapped, peer.optimizer = peer.accelerator.prepare(model, peer.optimizer)
    peer.current_gradient_accumulation_steps = 1
    inputs = []
    for t in (tables(batch) for batch in work.batches):
        labels = t.target_out.masked_fill(t.target_out == PAD, -100)
        mask = (t.source != PAD).long()
        inputs.append(
            {"input_ids": t.source, "attention_mask": mask, "labels": labels, "decoder_input_ids": t.target_in}
        )

    def run(i: int) -> Tensor:
        samples, items = peer.get_batch_samples(iter([dict(inputs[i])]), 1, torch.device("cpu"))
        value = peer.training_step(wrapped, samples[0], items)
        if not torch.isfinite(value):
            raise ArithmeticError("Trainer: the loss is not finite")
        peer.accelerator.clip_grad_norm_(wrapped.parameters(), CLIP)
        peer.optimizer.step()
        peer.lr_scheduler.step()
        wrapped.zero_grad()
        return value

    return Training(model, run)


# ---------------------------------------------------------------------------------------------- JoeyNMT


def joeynmt(work: Workload) -> Training:
    from joeynmt.batch import Batch as JoeyBatch
    from joeynmt.builders import build_gradient_clipper, build_optimizer
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    settings = work.settings
    # It has the special tokens in this order; their numbers are not ours, words have the same.
    unknown, pad, begin, end = range(4)
    symbols = types.SimpleNamespace(
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        sep_token=None,
        lang_tags=[],
        unk_id=unknown,
        pad_id=pad,
        bos_id=begin,
        eos_id=end,
        sep_id=None,
    )
    vocabulary = Vocabulary([str(n) for n in range(4, work.words)], symbols)
    renumbered = torch.arange(work.words)
    renumbered[[PAD, BEGIN, END]] = torch.tensor([pad, begin, end])

    def side(layers: int) -> dict[str, Any]:
        embeddings = {"embedding_dim": settings["width"], "scale": True, "dropout": DROPOUT}
        return {
            "type": "transformer",
            "num_layers": layers,
            "num_heads": settings["heads"],
            "dropout": DROPOUT,
            "hidden_size": settings["width"],
            "ff_size": settings["inner"],
            "layer_norm": "pre",
            "activation": "relu",
            "embeddings": embeddings,
        }

    torch.manual_seed(0)
    # The initial values of its own transformer examples.
    config = {
        "encoder": side(settings["encoder_layers"]),
        "decoder": side(settings["decoder_layers"]),
        "tied_softmax": True,
        "tied_embeddings": False,
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
    }
    model = build_model(config, vocabulary, vocabulary).train()
    model.loss_function = ("crossentropy", SMOOTHING)
    options = {
        "optimizer": "adam",
        "learning_rate": RATE,
        "adam_betas": BETAS,
        "clip_grad_val": None,
        "clip_grad_norm": CLIP,
        "weight_decay": 0.0,
    }
    optimizer, clip = build_optimizer(options, model.parameters()), build_gradient_clipper(options)
    fused(optimizer)
    inputs = [
        JoeyBatch(
            renumbered[t.source],
            t.source_lengths,
            None,
            renumbered[t.target],
            None,
            torch.arange(len(t.source)),
            torch.device("cpu"),
            pad,
            end,
        )
        for t in (tables(batch) for batch in work.batches)
    ]

    def run(i: int) -> float:
        batch = inputs[i]
        model.train()
        batch.sort_by_src_length()
        loss, _, _, correct = model(return_type="loss", **vars(batch))
        value = batch.normalize(loss, normalization="tokens")
        value.backward()
        reported = value.item(), correct.item()  # as its trainer does
        clip(parameters=model.parameters())
        optimizer.step()
        model.zero_grad()
        return reported[0]

    return Training(model, run)


# ---------------------------------------------------------------------------------------------- OpenNMT-py and eole


def _opennmt_vocabularies(tokens: Any, count: int) -> dict[str, Any]:
    """Special tokens numbered as ours."""
    import pyonmttok

    special = [tokens.PAD, tokens.BOS, tokens.EOS, tokens.UNK]
    words = [str(n) for n in range(len(special), count)]
    source, target = (pyonmttok.build_vocab_from_tokens(words, special_tokens=special) for _ in range(2))
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    return {"src": source, "tgt": target, "specials": names}


def opennmt(work: Workload) -> Training:
    from onmt import opts
    from onmt.constants import DefaultTokens
    from onmt.model_builder import build_model
    from onmt.trainer import Trainer
    from onmt.utils import Statistics
    from onmt.utils.loss import LossCompute
    from onmt.utils.optimizers import Optimizer
    from onmt.utils.parse import ArgumentParser

    settings = work.settings
    vocabularies = _opennmt_vocabularies(DefaultTokens, work.words)
    parser = ArgumentParser()
    opts.train_opts(parser)
    options = parser.parse_args(["-data", "none", "-src_vocab", "none"])  # it insists on both, and reads neither
    vars(options).update(
        encoder_type="transformer",
        decoder_type="transformer",
        position_encoding=True,
        layers=-1,
        enc_layers=settings["encoder_layers"],
        dec_layers=settings["decoder_layers"],
        hidden_size=settings["width"],
        word_vec_size=settings["width"],
        transformer_ff=settings["inner"],
        heads=settings["heads"],
        dropout=[DROPOUT],
        attention_dropout=[DROPOUT],
        label_smoothing=SMOOTHING,
        max_grad_norm=CLIP,
        optim="adam",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        learning_rate=RATE,
        share_decoder_embeddings=True,
        param_init=0.0,
        param_init_glorot=True,
        normalization="tokens",
        world_size=0,
        gpu_ranks=[],
        add_qkvbias=True,
        add_ffnbias=True,
        pos_ffn_activation_fn="relu",
    )
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    torch.manual_seed(0)
    model = build_model(options, options, vocabularies, None, -1).train()
    loss = LossCompute.from_opts(options, model, vocabularies["tgt"])
    optimizer = Optimizer.from_opt(model, options)
    fused(optimizer._optimizer)
    peer = Trainer(
        model,
        loss,
        loss,
        None,
        None,
        optimizer,
        norm_method="tokens",
        n_gpu=0,
        dropout=[DROPOUT],
        attention_dropout=[DROPOUT],
    )
    inputs = [
        {"src": t.source[..., None], "srclen": t.source_lengths, "tgt": t.target[..., None], "tokens": t.tokens}
        for t in (tables(batch) for batch in work.batches)
    ]

    def run(i: int) -> float:
        reported = Statistics()
        peer._gradient_accumulation([inputs[i]], inputs[i]["tokens"], Statistics(), reported)
        return reported.xent()

    return Training(model, run)


def eole(work: Workload) -> Training:
    from eole.config.run import TrainConfig
    from eole.constants import DefaultTokens
    from eole.models.model import get_model_class
    from eole.trainer import BatchProcessor
    from eole.utils import Statistics
    from eole.utils.loss import LossCompute
    from eole.utils.optimizers import Optimizer

    settings = work.settings
    vocabularies = _opennmt_vocabularies(DefaultTokens, work.words)
    biases = {"add_qkvbias": True, "add_final_linear_bias": True, "add_ffnbias": True}  # as the others have them
    config = TrainConfig(
        src_vocab="none",
        tgt_vocab="none",
        data={},
        model={
            "architecture": "transformer",
            "hidden_size": settings["width"],
            "word_vec_size": settings["width"],
            "transformer_ff": settings["inner"],
            "heads": settings["heads"],
            "share_decoder_embeddings": True,
            "encoder": {"layers": settings["encoder_layers"]},
            "decoder": {"layers": settings["decoder_layers"]},
            "position_encoding_type": "SinusoidalInterleaved",
            "mlp_activation_fn": "relu",
            **biases,
        },
        training={
            "dropout": [DROPOUT],
            "attention_dropout": [DROPOUT],
            "label_smoothing": SMOOTHING,
            "optim": "adam",
            "adam_beta1": BETAS[0],
            "adam_beta2": BETAS[1],
            "learning_rate": RATE,
            "max_grad_norm": CLIP,
            "param_init_method": "xavier_uniform",
            "normalization": "tokens",
            "compute_dtype": "fp32",
            "world_size": 0,
            "gpu_ranks": [],
        },
    )
    torch.manual_seed(0)
    model = get_model_class(config.model).for_training(config.model, vocabularies, config.training, device_id=-1)
    model.train()
    loss = LossCompute.from_config(config, model, vocabularies)
    optimizer = Optimizer.from_config(model, config)
    fused(optimizer._optimizer)
    peer = BatchProcessor(model, loss, optimizer, 0, "data_parallel", False, False, 0.0, 1)
    inputs = []
    for t in (tables(batch) for batch in work.batches):
        none = [None] * len(t.source)
        inputs.append(
            {
                "src": t.source,
                "srclen": t.source_lengths,
                "tgt": t.target,
                "images": None,
                "prefix_len": None,
                "cid": none,
                "cid_line_number": [0] * len(none),
                "tokens": t.tokens,
            }
        )

    def run(i: int) -> float:
        reported = Statistics()
        optimizer.zero_grad(set_to_none=True)
        peer.process_batch(inputs[i], inputs[i]["tokens"], 1, Statistics(), reported)
        optimizer.step()
        return reported.xent()

    return Training(model, run)


# ---------------------------------------------------------------------------------------------- Sockeye


def sockeye(work: Workload) -> Training:
    """As sockeye-train does, the model is traced."""
    from sockeye import constants, data_io, encoder, loss, model, optimizers, training, transformer

    settings, longest = work.settings, work.longest

    def stack(layers: int) -> Any:
        return transformer.TransformerConfig(
            model_size=settings["width"],
            attention_heads=settings["heads"],
            act_type=constants.RELU,
            feed_forward_num_hidden=settings["inner"],
            num_layers=layers,
            dropout_attention=DROPOUT,
            dropout_act=DROPOUT,
            dropout_prepost=DROPOUT,
            preprocess_sequence="n",
            postprocess_sequence="dr",
            positional_embedding_type=constants.FIXED_POSITIONAL_EMBEDDING,
            max_seq_len_source=longest,
            max_seq_len_target=longest,
            depth_key_value=settings["width"],
        )

    # The embeddings' own dropout stays 0, its default: what goes into the first layer is dropped anyway.
    embeddings = [encoder.EmbeddingConfig(work.words, settings["width"], 0.0) for _ in range(2)]
    config = model.ModelConfig(
        data_io.DataConfig(None, longest, longest, 1, 1),
        work.words,
        work.words,
        *embeddings,
        stack(settings["encoder_layers"]),
        stack(settings["decoder_layers"]),
        weight_tying_type=constants.WEIGHT_TYING_TRG_SOFTMAX,
    )
    torch.manual_seed(0)
    peer = model.SockeyeModel(config)
    peer.apply(model.initialize_parameters)
    peer.train()
    inputs = []
    for t in (tables(batch) for batch in work.batches):
        parts = (x[..., None].int() for x in (t.source, t.target_in, t.target_out))  # its iterators give int32
        inputs.append(data_io.create_batch_from_parallel_sample(*parts))
    first = inputs[0]
    example = (first.source, first.source_length, first.target, first.target_length)
    traced = torch.jit.trace(peer, example, strict=False, check_trace=False)  # a check would see the dropout
    both = training.ModelWithLoss(traced, [loss.CrossEntropyLoss(label_smoothing=SMOOTHING)])
    chosen = optimizers.OptimizerConfig(name=constants.OPTIMIZER_ADAM, lr=RATE, betas=BETAS)
    kind, options, zero = optimizers.get_optimizer(chosen)
    optimizer = kind(peer.parameters(), **options, fused=True)

    def run(i: int) -> float:
        batch = inputs[i]
        total, values, _ = both(batch.source, batch.source_length, batch.target, batch.target_length, batch.labels)
        total.backward()
        reported = values[0].item()  # as its trainer does
        nn.utils.clip_grad_norm_(peer.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(**zero)
        return reported

    return Training(peer, run)


# ---------------------------------------------------------------------------------------------- fairseq


def _import_fairseq() -> None:
    """Its configuration classes have instances of each other as defaults, which Python 3.11 refuses if unhashable."""
    import hydra.core.config_store  # noqa: F401  # first, so that only fairseq's own classes are made hashable

    original = dataclasses.dataclass

    def hashable(cls: type | None = None, **options: Any) -> Any:
        return original(cls, **({"unsafe_hash": True} | options))

    dataclasses.dataclass = hashable
    try:
        import fairseq.models.transformer  # noqa: F401
    finally:
        dataclasses.dataclass = original


def fairseq(work: Workload) -> Training:
    """Its own Adam and clipping, which are its only ones without a GPU: loops over the parameters.

    The encoder has copies of its weights for inference (BetterTransformer), which no step changes.
    """
    _import_fairseq()
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerConfig, TransformerModelBase
    from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    settings = work.settings
    words = Dictionary()
    for n in range(len(words), work.words):
        words.add_symbol(str(n))
    renumbered = torch.arange(work.words)
    renumbered[[PAD, BEGIN, END]] = torch.tensor([words.pad(), words.eos(), words.eos()])  # it begins with </s>

    task = TranslationTask(TranslationConfig(), words, words)
    config = TransformerConfig(
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
        activation_fn="relu",
        share_decoder_input_output_embed=True,
        max_source_positions=work.longest,
        max_target_positions=work.longest,
    )
    for name in ("encoder", "decoder"):
        side = getattr(config, name)
        side.embed_dim, side.ffn_embed_dim, side.normalize_before = settings["width"], settings["inner"], True
        side.layers, side.attention_heads = settings[f"{name}_layers"], settings["heads"]
    config.decoder.input_dim = config.decoder.output_dim = settings["width"]
    torch.manual_seed(0)
    model = TransformerModelBase.build_model(config, task)
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, SMOOTHING)
    chosen = FairseqAdamConfig(adam_betas=str(BETAS), lr=[RATE], tpu=False)
    optimizer = FairseqAdam(chosen, [p for p in model.parameters() if p.requires_grad])
    inputs = []
    for t in (tables(batch) for batch in work.batches):
        given = {
            "src_tokens": renumbered[t.source],
            "src_lengths": t.source_lengths,
            "prev_output_tokens": renumbered[t.target_in],
        }
        inputs.append({"net_input": given, "target": renumbered[t.target_out], "ntokens": t.tokens})

    def run(i: int) -> Tensor:
        optimizer.zero_grad()
        loss, tokens, _ = task.train_step(inputs[i], model, criterion, optimizer, 0)
        optimizer.multiply_grads(1 / tokens)
        optimizer.clip_grad_norm(CLIP)
        task.optimizer_step(optimizer, model, 0)
        return loss.detach() / tokens

    return Training(model, run)


PEERS: dict[str, tuple[str, str, Callable[[Workload], Training]]] = {  # {short name: (title, package, builder)}
    "marian": ("Hugging Face Marian", "transformers", marian),
    "trainer": ("Hugging Face Seq2SeqTrainer, Marian", "transformers", trainer),
    "m2m100": ("Hugging Face M2M100", "transformers", m2m100),
    "eole": ("eole", "eole", eole),
    "opennmt": ("OpenNMT-py", "OpenNMT-py", opennmt),
    "sockeye": ("Sockeye", "sockeye", sockeye),
    "joeynmt": ("JoeyNMT", "joeynmt", joeynmt),
    "fairseq": ("fairseq", "fairseq", fairseq),
}
