"""An XMPP client by slixmpp, told what to do by lines of JSON, answering with lines of JSON.

One argument: {"jid", "password", "port"}. Commands: {"do": …}; see the functions called do_….
"""

import asyncio
import json
import sys

import slixmpp
from slixmpp.exceptions import IqError, IqTimeout
from slixmpp.plugins.xep_0059 import ResultIterator, Set
from slixmpp.plugins.xep_0060.stanza import Pubsub
from slixmpp.xmlstream import ET, register_stanza_plugin
from slixmpp.xmlstream.handler import Callback
from slixmpp.xmlstream.matcher import StanzaPath

ATOM = "{http://www.w3.org/2005/Atom}"
FANOUT = "{http://fanout.org/protocol/atom}"
EVENT = "{http://jabber.org/protocol/pubsub#event}"
PUBSUB = "{http://jabber.org/protocol/pubsub}"
SHIM = "{http://jabber.org/protocol/shim}"


class Client(slixmpp.ClientXMPP):
    def __init__(self, jid, password):
        super().__init__(jid, password, plugin_config={
            "feature_mechanisms": {"unencrypted_plain": True, "unencrypted_scram": True},
        })
        self.enable_plaintext = True
        self.enable_starttls = False
        self.enable_direct_tls = False
        for plugin in ["xep_0030", "xep_0059", "xep_0060", "xep_0131", "xep_0199"]:
            self.register_plugin(plugin)
        register_stanza_plugin(Pubsub, Set)
        self.ready = asyncio.Event()
        self.pushed = asyncio.Queue()
        self.add_event_handler("session_start", lambda _: self.ready.set())
        self.add_event_handler("disconnected", lambda _: self.ready.clear())
        self.register_handler(Callback("pushes", StanzaPath("message/pubsub_event/items"), self.on_push))
        self.deleted = asyncio.Queue()
        self.register_handler(Callback("deletions", StanzaPath("message/pubsub_event/delete"), self.on_delete))
        # The plugin's own event, which most programs use: it names one item.
        self.published = asyncio.Queue()
        self.add_event_handler("pubsub_publish", self.on_publish)

    def on_push(self, message):
        items = message.xml.find(f"{EVENT}event/{EVENT}items")
        headers = {header.get("name"): header.text for header in message.xml.iter(f"{SHIM}header")}
        self.pushed.put_nowait({
            "from": str(message["from"]),
            "type": message["type"],
            "node": items.get("node"),
            "items": [entry(item) for item in items],
            "headers": headers,
        })

    def on_delete(self, message):
        node = message.xml.find(f"{EVENT}event/{EVENT}delete").get("node")
        self.deleted.put_nowait({"from": str(message["from"]), "node": node, "reason": message["body"]})

    def on_publish(self, message):
        self.published.put_nowait(message["pubsub_event"]["items"]["item"]["id"])


def entry(item):
    """What a stranger reads of an item."""
    found = item.find(f"{ATOM}entry")
    content = found.find(f"{ATOM}content")
    return {
        "id": item.get("id"),
        "fo": found.findtext(f"{FANOUT}id"),
        "title": found.findtext(f"{ATOM}title"),
        "content": None if content is None else content.text,
        "src": None if content is None else content.get("src"),
        "deleted": any(child.tag.endswith("}deleted-entry") for child in found),
    }


def page(iq):
    items = iq.xml.find(f"{PUBSUB}pubsub/{PUBSUB}items")
    rsm = iq["pubsub"]["rsm"]
    return {
        "node": items.get("node"),
        "items": [entry(item) for item in items],
        "first": rsm["first"], "index": rsm["first_index"], "last": rsm["last"], "count": rsm["count"],
    }


def request(client, service, node, **rsm):
    iq = client.Iq(sto=service, stype="get")
    iq["pubsub"]["items"]["node"] = node
    for name, value in rsm.items():
        iq["pubsub"]["rsm"][name] = True if value == "" and name == "before" else value
    return iq


async def do_items(client, service, node, timeout=None, **rsm):
    return page(await request(client, service, node, **rsm).send(timeout=timeout))


async def do_walk(client, service, node, amount, reverse):
    """Every page by slixmpp's own iterator, forwards or backwards."""
    iq = client.Iq(sto=service, stype="get")
    iq["pubsub"]["items"]["node"] = node
    ids = []
    async for found in ResultIterator(iq, "pubsub", amount=amount, reverse=reverse):
        of_page = [item["id"] for item in page(found)["items"]]
        ids = of_page + ids if reverse else ids + of_page
        iq = client.Iq(sto=service, stype="get")
    return {"ids": ids}


async def do_last(client, service, node, max_items):
    return page(await client["xep_0060"].get_items(service, node, max_items=max_items))


async def do_single(client, service, node, ids):
    return page(await client["xep_0060"].get_items(service, node, item_ids=ids))


async def do_published(client, service, count):
    """The next ids that the plugin's own event tells."""
    return {"ids": [await asyncio.wait_for(client.published.get(), 20) for _ in range(count)]}


async def do_deleted(client):
    """The next deletion of a node."""
    return await asyncio.wait_for(client.deleted.get(), 20)


async def do_subscribe(client, service, node, bare=False):
    answer = await client["xep_0060"].subscribe(service, node, bare=bare)
    subscription = answer["pubsub"]["subscription"]
    return {name: str(subscription[name]) for name in ["node", "jid", "subscription"]}


async def do_unsubscribe(client, service, node):
    await client["xep_0060"].unsubscribe(service, node, bare=False)
    return {}


async def do_subscriptions(client, service):
    answer = await client["xep_0060"].get_subscriptions(service)
    found = answer.xml.iter(f"{PUBSUB}subscription")
    return {"subscriptions": [[s.get("node"), s.get("jid"), s.get("subscription")] for s in found]}


async def do_info(client, service, node=None):
    info = (await client["xep_0030"].get_info(service, node=node))["disco_info"]
    return {
        "features": sorted(info["features"]),
        "identities": [list(identity) for identity in info["identities"]],
    }


async def do_nodes(client, service):
    found = await client["xep_0030"].get_items(service)
    return {"nodes": sorted(node for _, node, _ in found["disco_items"]["items"])}


async def do_ping(client, service):
    await client["xep_0199"].send_ping(service)
    return {}


async def do_raw(client, service, type, xml):
    """A request as it is written; an empty text is one without a payload."""
    iq = client.Iq(sto=service, stype=type)
    for part in ET.fromstring(f"<all>{xml}</all>"):
        iq.append(part)
    await iq.send()
    return {}


async def do_flood(client, service, node, count):
    """So many requests at the same time; all are answered."""
    answers = await asyncio.gather(*(request(client, service, node, max="1").send() for _ in range(count)))
    return {"answers": len(answers)}


async def do_pushed(client, timeout=20):
    """The next push."""
    try:
        return await asyncio.wait_for(client.pushed.get(), timeout)
    except asyncio.TimeoutError:
        return {"nothing": True}


async def do_ready(client):
    """Waits until the session is there (again)."""
    end = asyncio.get_event_loop().time() + 30
    while not client.ready.is_set():
        if asyncio.get_event_loop().time() > end:
            return {"ready": False}
        if client.transport is None and client._current_connection_attempt is None:
            client.connect(*client.address_of_server)
        await asyncio.sleep(0.1)
    return {"ready": True}


async def main():
    arguments = json.loads(sys.argv[1])
    client = Client(arguments["jid"], arguments["password"])
    client.address_of_server = ("127.0.0.1", arguments["port"])
    client.connect(*client.address_of_server)
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_event_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        do = globals()["do_" + command.pop("do")]
        try:
            answer = await do(client, **command)
        except IqError as error:
            own = [child.tag.split("}")[1] for child in error.iq["error"].xml if "pubsub#errors" in child.tag]
            answer = {"error": error.condition, "own": own, "kind": error.etype}
        except IqTimeout:
            answer = {"error": "timeout"}
        print(json.dumps(answer), flush=True)


asyncio.run(main())
