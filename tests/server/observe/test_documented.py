from tests.server.observe.documented import documented_metrics
from tests.server.observe.scraping import Observed
from tests.server.rpc.serving import Start, generate_request


async def test_the_documentation_has_every_metric_with_its_type_and_no_other(start: Start) -> None:
    serving = Observed()
    await (await start(serving)).ready()
    await serving.events(generate_request())
    assert serving.scrape().families() == documented_metrics()
