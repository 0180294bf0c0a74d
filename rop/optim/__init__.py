"""The settings of a training run as plain data: optimizers, penalties and schedules.

Every method is a file of this folder and a line below. A method is a frozen dataclass that follows the protocol
``Optimizer`` or ``Penalty`` of method.py, and each of its fields has a default. Checkpoints and configurations save
its fields, ``revive`` finds its class by the name that it has here, and ``rop train --method`` offers an optimizer by
that name in lower case, EntropySGD as entropy-sgd.
"""

from rop.optim.adam import Adam as Adam
from rop.optim.entropy_sgd import EntropySGD as EntropySGD
from rop.optim.kfac import KFAC as KFAC
from rop.optim.method import Epoch as Epoch
from rop.optim.method import Memory as Memory
from rop.optim.method import Optimizer as Optimizer
from rop.optim.method import Penalty as Penalty
from rop.optim.method import Problem as Problem
from rop.optim.method import Step as Step
from rop.optim.plain import completed as completed
from rop.optim.plain import describe as describe
from rop.optim.plain import optimizers as optimizers
from rop.optim.plain import revive as revive
from rop.optim.plain import with_rate as with_rate
from rop.optim.sam import SAM as SAM
from rop.optim.schedules import Schedule as Schedule
from rop.optim.schedules import convergent as convergent
from rop.optim.schedules import cosine as cosine
from rop.optim.schedules import inverse_epoch as inverse_epoch
from rop.optim.schedules import piecewise_linear as piecewise_linear
from rop.optim.schedules import power_law as power_law
from rop.optim.schedules import values as values
from rop.optim.sgd import SGD as SGD
from rop.optim.spectral_radius import SOLVERS as SOLVERS
from rop.optim.spectral_radius import SpectralRadius as SpectralRadius
from rop.optim.swa import SWA as SWA
