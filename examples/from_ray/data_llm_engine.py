# The calls are those of ray-project/ray, doc/source/data/doc_code/working-with-llms/basic_llm_example.py.
from headrace.compat.ray.data.llm import build_processor, vLLMEngineProcessorConfig

config = vLLMEngineProcessorConfig(
    model_source="unsloth/Llama-3.1-8B-Instruct",
    engine_kwargs={"enable_chunked_prefill": True, "max_num_batched_tokens": 4096, "max_model_len": 16384},
    concurrency=1,
    batch_size=64,
)
assert config.model_source == "unsloth/Llama-3.1-8B-Instruct"
assert config.engine_kwargs["max_model_len"] == 16384 and config.batch_size == 64
processor = build_processor(  # it runs where vLLM is, with a folder as model_source
    config,
    preprocess=lambda row: dict(
        messages=[
            {"role": "system", "content": "Answer in verse."},
            {"role": "user", "content": row["item"]},
        ],
        sampling_params=dict(temperature=0.3, max_tokens=250),
    ),
    postprocess=lambda row: dict(answer=row["generated_text"], **row),
)
assert callable(processor)
