import asyncio

from treadle.v1 import generation_pb2 as pb

from tests.server.observe.promtool import needs_promtool, promtool
from tests.server.observe.scraping import Observed
from tests.server.rpc.serving import Start, generate_request


@needs_promtool
async def test_promtool_finds_nothing_to_say_of_a_scrape_after_traffic(start: Start) -> None:
    serving = Observed()
    await (await start(serving)).ready()
    await asyncio.gather(*(serving.events(generate_request(f"prompt {i}")) for i in range(4)))
    await serving.refusal(pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(top_p=2)))
    checked = await asyncio.to_thread(promtool, "check", "metrics", stdin=serving.scrape().text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@needs_promtool
def test_promtool_would_say_of_a_counter_that_is_not_called_total() -> None:
    checked = promtool("check", "metrics", stdin="# HELP x_requests Some\n# TYPE x_requests counter\nx_requests 1\n")
    assert checked.returncode == 3
    assert "_total" in checked.stdout + checked.stderr
