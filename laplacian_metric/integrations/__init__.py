"""The toolkit among other libraries: one module for each, which alone loads its library.

`pytorch_metric_learning`, `scikit_learn`, `lightning`, `sentence_transformers` and `hub` can be imported without their
library; what needs it then says which extra to install.
"""

from __future__ import annotations
