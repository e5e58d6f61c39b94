"""Takes a network's name, gives what is known about it without building it: inputs, published figures, sources.

Imports nothing heavy, so that listing the zoo is instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from autofuse.errors import ModelError


@dataclass(frozen=True)
class ZooInput:
    """An input of a network at batch 1; axis 0 is the batch. Integers lie in [0, bound)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bound: int | None = None


@dataclass(frozen=True)
class ZooEntry:
    """A network of the zoo. Published figures are for one sample: parameters, multiply-accumulates (MACs)."""

    name: str
    title: str
    inputs: tuple[ZooInput, ...]
    published_parameters: int
    published_macs: int
    source: str


def _image(size: int) -> tuple[ZooInput, ...]:
    return (ZooInput("input", (1, 3, size, size), "float32"),)


def _tokens(count: int, vocabulary: int) -> tuple[ZooInput, ...]:
    return (ZooInput("input_ids", (1, count), "int64", vocabulary),)


_ENTRIES = (
    ZooEntry(
        "vgg16",
        "VGG-16, image classification",
        _image(224),
        138_357_544,
        15_470_000_000,
        "arXiv:1409.1556; figures: torchvision VGG16_Weights",
    ),
    ZooEntry(
        "mobilenet_v1",
        "MobileNet-V1 1.0, image classification",
        _image(224),
        4_231_976,
        569_000_000,
        "arXiv:1704.04861, table 4 (569 M MACs); parameters: trainable ones of keras.applications MobileNet",
    ),
    ZooEntry(
        "mobilenet_v2",
        "MobileNet-V2 1.0, image classification",
        _image(224),
        3_504_872,
        301_000_000,
        "arXiv:1801.04381; figures: torchvision MobileNet_V2_Weights",
    ),
    ZooEntry(
        "efficientnet_b0",
        "EfficientNet-B0, image classification",
        _image(224),
        5_288_548,
        386_000_000,
        "arXiv:1905.11946, table 2 (5.3 M, 0.39 G); figures: torchvision EfficientNet_B0_Weights",
    ),
    ZooEntry(
        "yolov4",
        "YOLOv4 at 416, 80 classes, object detection (raw maps)",
        _image(416),
        64_363_101,
        30_050_000_000,
        "arXiv:2004.10934; AlexeyAB/darknet README (60.1 BFLOPs at 416, two a MAC); parameters: those of yolov4.cfg, as"
        " counted by Tianxiaomo/pytorch-YOLOv4",
    ),
    ZooEntry(
        "yolov4_tiny",
        "YOLOv4-tiny at 416, 80 classes, object detection (raw maps)",
        _image(416),
        6_056_606,
        3_450_000_000,
        "arXiv:2011.08036; AlexeyAB/darknet README (6.9 BFLOPs, two a MAC); parameters: yolov4-tiny.weights without the"
        " running statistics",
    ),
    ZooEntry(
        "resnet50",
        "ResNet-50 v1.5, image classification",
        _image(224),
        25_557_032,
        4_089_000_000,
        "arXiv:1512.03385; figures: torchvision ResNet50_Weights",
    ),
    ZooEntry(
        "shufflenet_v2",
        "ShuffleNet-V2 1.0, image classification",
        _image(224),
        2_278_604,
        146_000_000,
        "arXiv:1807.11164, table 8 (146 M MACs); parameters: torchvision ShuffleNet_V2_X1_0_Weights",
    ),
    ZooEntry(
        "densenet121",
        "DenseNet-121, image classification",
        _image(224),
        7_978_856,
        2_834_000_000,
        "arXiv:1608.06993; figures: torchvision DenseNet121_Weights (2.87 G elsewhere, where batch norms count too)",
    ),
    ZooEntry(
        "minilm_l6",
        "MiniLM-L6 sentence encoder, 128 tokens, to the last hidden state",
        _tokens(128, 30_522),
        22_713_216,
        1_434_451_968,
        "arXiv:2002.10957; parameters: sentence-transformers/all-MiniLM-L6-v2, whose pooler (147,840) is not a part of"
        " this graph; MACs: closed form of the architecture",
    ),
    ZooEntry(
        "vit_tiny",
        "ViT-Tiny/16, image classification",
        _image(224),
        5_717_416,
        1_258_000_000,
        "arXiv:2010.11929 and arXiv:2012.12877; parameters: timm vit_tiny_patch16_224; MACs: closed form of the"
        " architecture, attention products counted (1.3 G in the literature)",
    ),
    ZooEntry(
        "gpt2",
        "GPT-2 small, 64 tokens, to the logits",
        _tokens(64, 50_257),
        124_439_808,
        7_981_793_280,
        "Radford et al. 2019; parameters: openai-community/gpt2, tied head counted once; MACs: closed form of the"
        " architecture",
    ),
)
_BY_NAME = {entry.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The networks of the zoo, in a fixed order."""
    return tuple(_BY_NAME)


def describe(name: str) -> ZooEntry:
    """What is known about a network. Raises ModelError, naming the known ones, for any other name."""
    entry = _BY_NAME.get(name)
    if entry is None:
        close = get_close_matches(name.lower().replace("-", "_"), _BY_NAME, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ModelError(f"unknown network {name!r}: {hint}the zoo has {', '.join(_BY_NAME)}")
    return entry
