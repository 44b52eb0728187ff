"""Runs models that stormdrop has tuned and saved: native ones with NumPy alone, and those for GPUs.

```python
import stormdrop_runtime

model = stormdrop_runtime.load("resnet50.sd")
y = model(x)
```
"""

from .errors import ArtifactError, DeviceError, InputError, StormdropError
from .runtime import CompiledModel, load

__all__ = ["ArtifactError", "CompiledModel", "DeviceError", "InputError", "StormdropError", "load"]
