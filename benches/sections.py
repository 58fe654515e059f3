"""Sections of docs/benchmarks.md: which results they show, with which words and curves."""

import dataclasses


@dataclasses.dataclass
class Section:
    # Name of the files of results; those with `-of-…` appended belong to the section too.
    results: str
    title: str
    text: str
    # What a size counts, for curves.
    size: str = ""
    # Title of each drawing, and the measurements in it.
    curves: list = dataclasses.field(default_factory=list)


STARTS = ["start to the first answer", "start until all feeds are there", "start until all feeds are there, CPU",
          "start after kill -9, until all feeds are there"]
MEMORY = ["memory after publishing", "memory after the start", "memory after reading", "memory of verify"]
DISK = ["disk / content", "disk / content, log", "disk / content, indexes",
        "disk / content, DiffDelta's archive and other documents", "disk / content, journals"]

SECTIONS = [
    Section("growth-items", "Growth of one feed", """
Items are published into one feed, and measured at each tenfold. Random text cannot be compressed to less than three quarters;
other text has the words of this documentation. CPU is that of all the server's threads, for requests at random places, one
after the other. Appends include all work that they cause later: compaction, and two documents of DiffDelta's archive, the
feed's and that over all feeds. *verify* reads every change, so its CPU is per change. The axis of sizes is logarithmic: a
straight line is logarithmic growth.""", "items", [
        ("CPU of a request in µs", ["pull of 50 items, beginning", "pull of 50 items, middle", "pull of 50 items, end",
                                    "page by time", "one item by id"]),
        ("CPU of appends and of verify in µs per item", ["append, 1,000 in a request", "verify"]),
        ("Start in ms", STARTS),
        ("Memory in MiB", MEMORY),
        ("Disk as a multiple of the content", DISK),
    ]),
    Section("growth-feeds", "Growth of a node with many feeds", """
Each feed has ten items of random text. Requests go to random feeds, so nearly each is the first one of its feed.""", "feeds", [
        ("CPU of a request in µs", ["pull of 10 items of any feed", "append to any feed, one in a request",
                                    "latest.json of any feed"]),
        ("CPU of appends and of verify in µs per item", ["append to new feeds, 10 in a request", "verify"]),
        ("Start in ms", STARTS),
        ("Memory in MiB", MEMORY),
        ("Disk as a multiple of the content", DISK),
    ]),
    Section("latency", "Latency under load", """
A thousand followers wait in long polls for messages of 200 bytes, which four publishers append. *Carried* is the number of
messages a second that all followers get while each publisher appends as soon as its last message is acknowledged. Then messages are appended at half of
that rate, and at half of the rate of the least server, at fixed times: latency counts from the time at which a message is
due to its arrival at a follower, so a server gains nothing by delaying its publishers. towpath acknowledges what is on the
disk. Nchan and durable-streams-server keep messages in memory. Where the share of messages that came is below 1, followers
were not told of the rest. The client has the other core, and is part of all times."""),
    Section("smart", "Long polls and pulls", """
Waiting followers beside [Nchan](https://nchan.io/), nginx's module for long polls, and
[durable-streams-server](https://crates.io/crates/durable-streams-server). towpath syncs each append, the others do not."""),
    Section("http", "Documents beside nginx", """
`head.json` that did not change, and `latest.json` from memory, beside nginx with the same bytes as static files."""),
    Section("replication", "Data Replication", """
Sealed pages beside nginx with the same bytes, and a cold follower beside plain `GET`s of the same pages.""", "items", [
        ("CPU of a page by time in µs", ["page by time"])]),
    Section("sinks", "Sinks", """
The first sync of a feed into a database, beside the least that it costs: a bare loop of inserts, and psql's `COPY` with a
merge. Then the latency of single changes, and the time behind a steady rate."""),
    Section("webhooks", "Webhooks", "Signed deliveries beside a bare loop that posts the same body to the same receiver."),
    Section("xmpp", "XMPP", "An append to many subscribers through Prosody, beside a bare component that writes the same stanzas."),
    Section("python", "Changes in Python", "A loop over changes with the Python package, beside the command line."),
    Section("cluster", "A cluster's node", "Reading from a node of a cluster beside a single server, and the growth of the log."),
    Section("memory", "Memory with many sources", "A server that polls a thousand sources."),
    Section("feeds", "Many idle feeds", "Memory and start of a node with idle feeds, and its SUP documents."),
    Section("backup", "A hot backup", """
Publishing alone, and while the whole data folder is backed up to the same disk, in turns. Sixteen writers publish items of
1 kB, each as soon as the last one is acknowledged."""),
    Section("export", "Export", "Feeds as static files: a first export, one without changes, and one with a few changed feeds."),
    Section("page", "The web page", "Views of the web page, made for each request, over a large feed and over many feeds."),
]
