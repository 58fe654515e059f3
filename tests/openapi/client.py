"""Generates a client from openapi.json in the working folder, imports all of it, and publishes and reads with it.

Arguments: the server's address, and a token.
"""

import compileall
import importlib
import pathlib
import subprocess
import sys

base, token = sys.argv[1:]
generator = pathlib.Path(sys.executable).with_name("openapi-python-client")
settings = pathlib.Path("settings.yml")
# Without the formatter that it runs by default.
settings.write_text("post_hooks: []\nproject_name_override: generated\npackage_name_override: generated\n")
made = subprocess.run(
    [generator, "generate", "--path", "openapi.json", "--config", settings, "--output-path", "client", "--meta", "none"],
    capture_output=True,
    text=True,
)
if made.returncode:
    sys.exit(made.stdout + made.stderr)
pathlib.Path("client").rename("generated")
if not compileall.compile_dir("generated", quiet=1):
    sys.exit("the client does not compile")
sys.path.insert(0, ".")
modules = [".".join(file.with_suffix("").parts) for file in pathlib.Path("generated").rglob("*.py")]
for module in modules:
    importlib.import_module(module)
print(f"{len(modules)} modules")

from generated import AuthenticatedClient, Client  # noqa: E402
from generated.api.feeds import create_read_link, get_feed, list_feeds  # noqa: E402
from generated.api.items import delete_item, list_items  # noqa: E402
from generated.models import ListItemsOrder, Problem  # noqa: E402

with AuthenticatedClient(base_url=base, token=token) as client:
    before = list_items.sync("orders", client=client, timeout=0)
    assert [item.id for item in before.items] == ["order-1", "order-2", "order-3"], before
    receipt = delete_item.sync("orders", "order-2", client=client)
    assert receipt.appended == 1 and receipt.feed == "orders" and receipt.seq == 4, receipt
    after = list_items.sync("orders", client=client, order=ListItemsOrder.CREATED, timeout=0)
    assert "order-2" not in [item.id for item in after.items if item.object_type == "article"], after
    assert {feed.id for feed in list_feeds.sync(client=client).feeds} == {"internal", "orders"}
    assert "link=" in create_read_link.sync("internal", client=client).items
with Client(base_url=base) as client:
    assert get_feed.sync("orders", client=client).addresses
    problem = get_feed.sync("nothing", client=client)
    assert isinstance(problem, Problem) and problem.status == 404, problem
    assert isinstance(delete_item.sync("orders", "order-1", client=client), Problem)
print("published and read")
