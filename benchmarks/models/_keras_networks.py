"""The networks of Keras as contenders, in TensorFlow with and without XLA.

TensorFlow cannot read our ONNX models: onnx-tensorflow is no longer maintained, and onnx2tf 1.29 needs exactly
tensorflow 2.19, numpy 1.26 and onnx 1.19. So a network of Keras stands for a model if it has the same layers. Its
weights are its own (the time of dense arithmetic does not depend on them), so outputs cannot be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.peers.tensorflow_operators import import_tensorflow

NETWORKS: Mapping[str, str] = {
    "vgg16": "VGG16",
    "vgg19": "VGG19",
    "densenet121": "DenseNet121",
    "densenet169": "DenseNet169",
    "densenet201": "DenseNet201",
    "inception_v3": "InceptionV3",
    "mobilenet_v1": "MobileNet",
    "mobilenet_v2": "MobileNetV2",
    "resnet50_v1": "ResNet50",
}
"""The class in `tf.keras.applications`, by the name of the model. Keras' ResNets have their strides in the first 1x1
convolution of a block and torchvision's in the 3x3 one, so only ResNet-50 as it was published has its like here."""


def contenders(model: str) -> list[ContenderSpec]:
    """The network of a model with and without XLA; none if Keras does not have it."""
    if model not in NETWORKS:
        return []
    maker = "_keras_networks:KerasNetwork"
    return [
        ContenderSpec("tensorflow", maker, {"network": NETWORKS[model], "xla": False}),
        ContenderSpec("tensorflow-xla", maker, {"network": NETWORKS[model], "xla": True}),
    ]


class KerasNetwork:
    """A network on one seeded image, with its weights frozen into the graph."""

    def __init__(self, network: str, xla: bool, threads: int) -> None:
        """Make the network.

        Args:
            network: The name of the class in `tf.keras.applications`.
            xla: Whether XLA compiles it.
            threads: The number of threads of an operator.
        """
        tf = import_tensorflow(threads)
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        tf.keras.utils.set_random_seed(0)
        model = getattr(tf.keras.applications, network)(weights=None)
        shape = (1, *model.input_shape[1:])
        self._image = tf.constant(np.random.default_rng(0).standard_normal(shape, "float32"))
        inference = tf.function(lambda image: model(image, training=False), autograph=False)
        frozen = convert_variables_to_constants_v2(inference.get_concrete_function(self._image))
        if xla:
            compiled = tf.function(lambda image: frozen(image)[0], jit_compile=True, autograph=False)
            self._call = compiled.get_concrete_function(self._image)
        else:
            self._call = frozen
        self.versions: Mapping[str, str] = {"tensorflow": tf.__version__, "keras": tf.keras.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "compiled": "by XLA" if xla else "no"}

    def run(self) -> object:
        return self._call(self._image)

    def outputs(self) -> list[Any]:
        result = self._call(self._image)
        tensors = result if isinstance(result, list | tuple) else [result]
        return [tensor.numpy() for tensor in tensors]
