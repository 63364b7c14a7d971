"""An implementation under test: asked on its device, with the models it has built."""

from __future__ import annotations

import torch

from conformance.cases import Case, Changes, ModelCase
from conformance.implementations.base import Implementation, Model, Unsupported

# What a Llama need not know: to refuse a config that asks for it is an answer; to ignore it is a fault.
OPTIONS = frozenset({"hidden_act", "attention_bias", "mlp_bias", "rope.partial_rotary_factor"})


def options(case: Case) -> list[str]:
    """What a case asks for that a Llama need not know, in words."""
    but: Changes = getattr(case, "but", ())
    return [f"{name} = {value!r}" for name, value in but if name in OPTIONS]


class Subject:
    """An implementation under test: what it is asked goes to its device, and built models are kept.

    Args:
        implementation: who is compared.
        device: where it computes.
    """

    def __init__(self, implementation: Implementation, device: str = "cpu") -> None:
        self.implementation = implementation
        self.device = torch.device(device)
        self._models: dict[object, Model] = {}

    def model(self, case: ModelCase) -> Model:
        """The built model of a case; cases on the same weights share it.

        Raises:
            Unsupported: it does not build such a model; or refuses it, where the case asks for an option.
        """
        if case.model_key not in self._models:
            self._models[case.model_key] = self.built(case)
        return self._models[case.model_key]

    def built(self, case: ModelCase) -> Model:
        """A model of a case, built anew."""
        weights = {name: self.on_device(w) for name, w in case.weights().items()}
        asked = options(case)
        try:
            return self.implementation.build(case.config, weights)
        except Unsupported:
            raise
        except Exception as error:
            if not asked:
                raise
            raise Unsupported(f"refuses {', '.join(asked)} ({type(error).__name__}: {error})") from error

    def forget(self) -> None:
        """Drop the built models, where every case brings its own weights."""
        self._models.clear()

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor where the implementation computes."""
        return tensor.to(self.device)
