"""Runs models that stormdrop has tuned and saved as native code, with NumPy alone.

```python
import stormdrop_runtime

model = stormdrop_runtime.load("resnet50.sd")
y = model(x)
```
"""

from .errors import ArtifactError, InputError, StormdropError
from .runtime import CompiledModel, load

__all__ = ["ArtifactError", "CompiledModel", "InputError", "StormdropError", "load"]
