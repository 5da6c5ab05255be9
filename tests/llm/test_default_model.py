"""The built-in model through ``LLM``: it answers, and its answer is the same whoever shares the batch."""

from inflight import LLM, SamplingParams
from inflight.hub.resolve import ModelFiles


def test_the_default_model_answers(model_files: ModelFiles) -> None:
    with LLM(
        dtype="float32", num_threads=1, max_num_seqs=8, max_num_batched_tokens=128, num_gpu_blocks_override=64
    ) as llm:
        assert llm.info.model_name == model_files.name
        conversations = [
            [{"role": "user", "content": f"What is the capital of {country}?"}] for country in ("France", "Italy")
        ]
        params = SamplingParams(temperature=0, max_tokens=8)
        together = llm.chat(conversations, params, use_tqdm=False)
        assert "Paris" in together[0].outputs[0].text
        alone = llm.chat(conversations[1], params, use_tqdm=False)
        assert alone[0].outputs[0].token_ids == together[1].outputs[0].token_ids
