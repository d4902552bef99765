"""What Ray's ``to_torch`` yields: pairs of feature tensors and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which columns are features, in which form, and which is the label."""

    label: str | None
    features: Any
    label_dtype: Any
    feature_dtypes: Any
    unsqueezed_label: bool
    unsqueezed_features: bool

    def of(self, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return features and label of a batch of arrays; None where there is no label."""
        label = None
        if self.label is not None:
            label = self._tensor(batch, self.label, self.label_dtype, unsqueezed=self.unsqueezed_label)
        return self._features(batch), label

    def _features(self, batch: Mapping[str, Any]) -> Any:
        chosen, dtypes = self.features, self.feature_dtypes
        if isinstance(chosen, Mapping):
            of = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(chosen, dtypes)
            return {key: self._together(batch, names, of.get(key)) for key, names in chosen.items()}
        if chosen and not isinstance(chosen[0], str):
            each = dtypes if isinstance(dtypes, Sequence) else [dtypes] * len(chosen)
            return [self._together(batch, names, dtype) for names, dtype in zip(chosen, each, strict=True)]
        names = chosen or [name for name in batch if name != self.label]
        return self._together(batch, names, dtypes)

    def _together(self, batch: Mapping[str, Any], names: Sequence[str], dtype: Any) -> Any:
        """Return columns side by side in one tensor; without ``unsqueezed_features``, one column as it is."""
        import torch

        unsqueezed = self.unsqueezed_features or len(names) > 1
        parts = [self._tensor(batch, name, dtype, unsqueezed=unsqueezed) for name in names]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _tensor(self, batch: Mapping[str, Any], name: str, dtype: Any, *, unsqueezed: bool) -> Any:
        import torch

        if name not in batch:
            raise ArgumentError(f"to_torch: there is no column {name!r}; the columns are {', '.join(batch)}.")
        try:
            array = batch[name]
            dense = np.stack([*array]) if array.dtype == object else array.copy()  # lists of one length
            tensor = torch.as_tensor(dense, dtype=dtype)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"to_torch: column {name!r} cannot become a tensor: {error}.") from error
        return tensor.unsqueeze(1) if unsqueezed else tensor
