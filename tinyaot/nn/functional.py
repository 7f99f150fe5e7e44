"""`tinyaot.functional` under the name that torch's users import it by."""

from tinyaot.functional import *  # noqa: F403
from tinyaot.functional import __all__ as __all__
