import pytest
from google.protobuf.duration_pb2 import Duration
from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.engine.plan import LogprobsWanted
from server.parsing.tool_call_format import ToolCallFormat
from server.rpc.output import Output, output


def test_unset_is_text_and_ids_and_nothing_else() -> None:
    assert output(pb.OutputOptions()) == Output()


def test_every_field_is_read() -> None:
    message = pb.OutputOptions(
        omit_token_ids=True,
        logprobs=0,
        prompt_logprobs=0,
        logprobs_of=pb.LOGPROBS_OF_PROCESSED,
        keep_special_tokens=True,
        echo_prompt=True,
        usage=True,
        chunk_interval=Duration(seconds=60),
        parse_tool_calls=pb.TOOL_CALL_FORMAT_MISTRAL,
        parse_reasoning=True,
    )
    assert output(message) == Output(
        token_ids=False,
        text=True,
        logprobs=LogprobsWanted(0, processed=True),
        prompt_logprobs=0,
        keep_special_tokens=True,
        echo_prompt=True,
        usage=True,
        chunk_interval=60.0,
        tool_calls=ToolCallFormat.MISTRAL,
        reasoning=True,
    )
    assert not output(pb.OutputOptions(omit_text=True)).text


def test_every_tool_call_format_is_read() -> None:
    read = {output(pb.OutputOptions(parse_tool_calls=number)).tool_calls for number in pb.ToolCallFormat.values()}
    assert read == {None, *ToolCallFormat}


@pytest.mark.parametrize("parsed", [{"parse_reasoning": True}, {"parse_tool_calls": pb.TOOL_CALL_FORMAT_HERMES}])
def test_text_and_ids_may_both_be_left_out_where_something_is_parsed(parsed: dict[str, object]) -> None:
    nothing = pb.OutputOptions(omit_text=True, omit_token_ids=True)
    with pytest.raises(InvalidArgument):
        output(nothing)
    nothing.MergeFrom(pb.OutputOptions(**parsed))  # type: ignore[arg-type]
    assert output(nothing).parses
