from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.engine.events import Started, Tokens
from server.rpc.generations import Heard
from server.rpc.vllm_engine.generation_answers import GenerationAnswers


def test_an_abort_ends_only_what_has_no_end_yet_and_with_what_has_come() -> None:
    answers = GenerationAnswers(2, is_streamed=False)
    for index in range(2):
        answers.after(Heard(index, Started(seed=1, prompt_token_count=5, cached_token_count=4)))
    answers.after(Heard(1, Tokens((7, 8), "ab")))
    answers.end(0)
    (end,) = [pb.GenerateResponse.FromString(each).complete for each in answers.aborted()]
    assert (end.index, end.finish_reason, list(end.output_ids)) == (1, "abort", [7, 8])
    assert (end.prompt_tokens, end.cached_tokens, end.completion_tokens) == (5, 4, 2)


def test_ids_that_come_without_text_and_text_without_ids_are_told_once() -> None:
    answers = GenerationAnswers(1, is_streamed=True)
    events = [Tokens((7,), ""), Tokens((), "a"), Tokens((8, 9), "b")]
    chunks = [answers.after(Heard(0, event)) for event in events]
    told = [[list(pb.GenerateResponse.FromString(raw).chunk.token_ids) for raw in each] for each in chunks]
    assert told == [[[7]], [], [[8, 9]]]
