from otmd.audit.samples import *  # noqa
from otmd.audit.by_samples import *
from otmd.audit.by_enumeration import *
from otmd.audit.draft_samples import *
