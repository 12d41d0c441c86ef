import subprocess
import sys

import pytest

import otmd.models


def test_every_public_name_is_there():
    for name in otmd.models.__all__:
        assert getattr(otmd.models, name) is not None
        assert name in dir(otmd.models)
    with pytest.raises(AttributeError, match="nonsense"):
        otmd.models.nonsense  # noqa: B018


def test_importing_and_opening_need_no_torch(tmp_path):
    code = (
        "import sys, numpy as np, otmd.models as h\n"
        "assert not {'torch', 'transformers', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "np.savez(sys.argv[1], target_logits=np.ones((1, 2)), draft_logits=np.ones((1, 2)))\n"
        "h.open_dataset(sys.argv[1]).arrays([0])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "dump.npz")], check=True)
