from otmd.audit.bets import *  # noqa
from otmd.audit.counts import *  # noqa
