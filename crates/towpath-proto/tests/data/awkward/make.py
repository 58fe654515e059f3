#!/usr/bin/env python3
"""Writes documents.ndjson: awkward feeds, each with the result of feedparser 6.

    python3 -m venv v && v/bin/pip install 'feedparser<7' && v/bin/python make.py

Each document is a sound feed with one fault, so that a difference names its cause.
"""

import base64
import json
import pathlib
import re
import time

import feedparser

RSS = """<?xml version="1.0" encoding="utf-8"?>
<rss version="2.0"><channel><title>{channel}</title><link>https://canal.example/</link>
<item><guid isPermaLink="false">n-2</guid><title>{title}</title><link>{link}</link>
<pubDate>Sun, 01 Mar 2026 08:00:00 GMT</pubDate><description>{text}</description>{more}</item>
<item><guid isPermaLink="false">n-1</guid><title>Ten boats</title><link>https://canal.example/1</link>
<description>Seen at the lock.</description></item>
</channel></rss>
"""
ATOM = """<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:canal</id><title>{channel}</title>
<entry><id>urn:n-2</id><title>{title}</title><link href="{link}"/><updated>2026-03-01T08:00:00Z</updated>
<content type="html">{text}</content>{more}</entry>
<entry><id>urn:n-1</id><title>Ten boats</title><link href="https://canal.example/1"/>
<content type="html">Seen at the lock.</content></entry>
</feed>
"""
RDF = """<?xml version="1.0" encoding="utf-8"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<channel rdf:about="https://canal.example/"><title>{channel}</title><link>https://canal.example/</link></channel>
<item rdf:about="urn:n-2"><title>{title}</title><link>{link}</link><description>{text}</description>{more}</item>
<item rdf:about="urn:n-1"><title>Ten boats</title><link>https://canal.example/1</link></item>
</rdf:RDF>
"""
BASES = {"rss": RSS, "atom": ATOM, "rdf": RDF}
SOUND = {
    "channel": "Canal notices",
    "title": "Lock closed",
    "link": "https://canal.example/2",
    "text": "From Monday on.",
    "more": "",
}

# name of the document: text or bytes
DOCUMENTS = {}


def add(name, document):
    assert name not in DOCUMENTS, name
    DOCUMENTS[name] = document


def fault(base, name, **parts):
    add(f"{base}: {name}", BASES[base].format(**{**SOUND, **parts}))


REFERENCES = {
    "bare ampersand": "locks & boats",
    "ampersand at the end": "locks &",
    "ampersand at the beginning": "& locks",
    "two ampersands": "locks && boats",
    "ampersand and digits": "locks & 7 boats",
    "ampersand before a semicolon": "locks &; boats",
    "ampersand before a comma": "locks &, boats",
    "bare beside a sound one": "locks & boats &amp; bridges",
    "Latin entity": "caf&eacute;",
    "space entity": "locks&nbsp;boats",
    "dash entity": "locks &mdash; boats",
    "quote entity": "&ldquo;locks&rdquo;",
    "Greek entity": "&alpha; &Omega;",
    "unknown entity": "locks &nosuch; boats",
    "unknown entity with digits": "locks &x7q; boats",
    "decimal reference": "caf&#233;",
    "hexadecimal reference": "caf&#xE9;",
    "reference to an ampersand": "locks &#38; boats",
    "reference without semicolon": "caf&#233 and more",
    "empty reference": "locks &#; boats",
    "empty hexadecimal reference": "locks &#x; boats",
    "reference with letters": "locks &#12ab; boats",
    "ampersand and hash": "locks &# boats",
    "escaped twice": "locks &amp;amp; boats",
    "escaped twice beside a bare one": "locks &amp;amp; boats & bridges",
    "euro entity": "7 &euro; & more",
}
for base in BASES:
    for name, text in REFERENCES.items():
        fault(base, f"{name} in a title", title=text)
        fault(base, f"{name} in a text", text=text)

ADDRESSES = {
    "query": "https://canal.example/?a=1&b=2",
    "long query": "https://canal.example/?a=1&b=2&c=3&d=4",
    "query with an equals sign": "https://canal.example/?x&y=2",
    "query half escaped": "https://canal.example/?a=1&amp;b=2&c=3",
    "empty parameter": "https://canal.example/?a=1&",
}
for base in BASES:
    for name, link in ADDRESSES.items():
        fault(base, f"bare ampersand in a link, {name}", link=link)

MARKUP = {
    "line break": "one<br>two",
    "line break, closed": "one<br />two & three",
    "line breaks": "one<br>two<br>three<br>",
    "open paragraph": "<p>one",
    "paragraphs": "<p>one<p>two",
    "closed paragraph only": "one</p>two",
    "bold, open": "one <b>two",
    "bold, closed twice": "one <b>two</b></b> three",
    "overlap": "one <b>two <i>three</b> four</i>",
    "image": 'one <img src="2.png"> two',
    "image without quotes": "one <img src=2.png> two",
    "image with an alternative": 'one <img src="2.png" alt="a & b"> two',
    "link": 'one <a href="https://canal.example/">two</a> & three',
    "link, open": 'one <a href="https://canal.example/">two',
    "link without quotes": "one <a href=https://canal.example/2>two</a>",
    "list": "<ul><li>one<li>two</ul>",
    "table": "<table><tr><td>one<td>two</table>",
    "rule": "one<hr>two",
    "upper case": "one<BR>two<B>three</b>",
    "attribute without a value": "one <b hidden>two</b>",
    "division, open": "<div>one</div><div>two",
    "span, closed wrongly": "<span>one</div>",
    "font": '<font color=red>one</font> & two',
    "comment": "one <!-- no --> two & three",
    "section": "one <![CDATA[<b>two</b> & three]]> four & five",
    "section with a bare bracket": "<![CDATA[1 < 2]]> & three",
    "heading": "<h2>one</h3>two",
    "quotation": "<blockquote>one<p>two</blockquote>",
}
for base in ("rss", "atom"):
    for name, text in MARKUP.items():
        fault(base, f"markup in a text, {name}", text=text)
for name in ("line break", "bold, open", "overlap", "upper case", "comment"):
    fault("rdf", f"markup in a text, {name}", text=MARKUP[name])
    fault("rss", f"markup in a title, {name}", title=MARKUP[name])

BRACKETS = {
    "less than": "1 < 2 locks",
    "less than a digit": "locks <3 boats",
    "arrow": "locks <- boats",
    "less or equal": "1 <= 2 locks",
    "end of a section": "a[b[0]]>c & d",
    "greater than": "2 > 1 & more",
}
for base in ("rss", "atom"):
    for name, text in BRACKETS.items():
        fault(base, f"{name} in a text", text=text)
        fault(base, f"{name} in a title", title=text)

CONTROLS = {"01": "\x01", "02": "\x02", "08": "\x08", "0b": "\x0b", "0c": "\x0c", "0e": "\x0e", "1f": "\x1f"}
for name, control in CONTROLS.items():
    fault("rss", f"control character {name} in a title", title=f"locks{control}boats")
    fault("atom", f"control character {name} in a text", text=f"locks{control}boats")

DOCTYPES = {
    "a word": ('<!ENTITY who "lock keeper">', "The &who; waves"),
    "single quotes": ("<!ENTITY who 'lock keeper'>", "The &who; waves"),
    "a number": ('<!ENTITY eacute "&#233;">', "caf&eacute;"),
    "two": ('<!ENTITY a "one"> <!ENTITY b "two">', "&a; and &b;"),
    "unused": ('<!ENTITY who "lock keeper">', "plain"),
    "nested": ('<!ENTITY a "one"><!ENTITY b "&a; two">', "x &b; y"),
    "bomb": ('<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">', "x &c; y"),
    "external": ('<!ENTITY x SYSTEM "file:///etc/passwd">', "x &x; y"),
    "with a bare ampersand": ('<!ENTITY who "lock keeper">', "&who; & more"),
    "markup": ('<!ENTITY m "&#60;b&#62;x">', "a &m; b"),
}
for base in ("rss", "atom"):
    root = "rss" if base == "rss" else "feed"
    for name, (entities, text) in DOCTYPES.items():
        document = BASES[base].format(**{**SOUND, "text": text})
        head, rest = document.split("\n", 1)
        # feedparser looks for each at the beginning of a line.
        declared = entities.replace("<!ENTITY", "\n<!ENTITY")
        add(f"{base}: entity of the document type, {name}", f"{head}\n<!DOCTYPE {root} [{declared}\n]>\n{rest}")

sound = {base: text.format(**SOUND) for base, text in BASES.items()}


def change(name, old, new, base="rss"):
    assert old in sound[base], (name, old)
    add(f"{base}: {name}", sound[base].replace(old, new, 1))


change("sound", "Lock", "Lock")
change("sound", "Lock", "Lock", "atom")
change("sound", "Lock", "Lock", "rdf")
change("title not closed", "closed</title>", "closed")
change("guid not closed", "n-2</guid>", "n-2")
change("link not closed", "example/2</link>", "example/2")
change("description not closed", "on.</description>", "on.")
change("date not closed", "GMT</pubDate>", "GMT")
change("item not closed", "</item>\n<item>", "\n<item>")
change("last item not closed", "</item>\n</channel>", "\n</channel>")
change("channel not closed", "</channel></rss>", "</rss>")
change("item closed twice", "</item>", "</item></item>")
change("title closed twice", "closed</title>", "closed</title></title>")
change("stray end tag in an item", "<link>https://canal.example/2", "</b><link>https://canal.example/2")
change("end tag in other case", "closed</title>", "closed</Title>")
change("title in other case", "<title>Lock closed</title>", "<Title>Lock closed</Title>")
add("rss: names in capitals", re.sub("<(/?)(item|title|link|description|guid|pubDate)", lambda m: "<" + m[1] + m[2].upper(), sound["rss"]))
change("date in lower case", "<pubDate>Sun, 01 Mar 2026 08:00:00 GMT</pubDate>", "<pubdate>Sun, 01 Mar 2026 08:00:00 GMT</pubdate>")
change("tags in other case", "closed</title>", "closed</TITLE>")
change("end tag with space", "closed</title>", "closed</title >")
change("attribute twice", "<rss version", '<rss version="2.0" version')
change("attribute without quotes", '<guid isPermaLink="false">n-2', "<guid isPermaLink=false>n-2")
change("attribute without a value", "<item>", "<item hidden>")
change("attributes without space", '<rss version="2.0">', '<rss version="2.0"lang="en">')
change("prefix of Dublin Core not declared", "<pubDate>", "<dc:creator>A. Keeper</dc:creator><pubDate>")
change("prefix of content not declared", "<pubDate>", "<content:encoded>Whole</content:encoded><pubDate>")
change("prefix of media not declared", "<pubDate>", '<media:content url="https://canal.example/2.mp4"/><pubDate>')
change("prefix of podcasts not declared", "<pubDate>", "<itunes:duration>7</itunes:duration><pubDate>")
change("unknown prefix not declared", "<pubDate>", "<x:y>7</x:y><pubDate>")
change("prefix of an attribute not declared", "<item>", '<item x:y="7">')
change("text before the declaration", "<?xml", "Warning: cache is full\n<?xml")
change("lines before the declaration", "<?xml", "\n\n<?xml")
change("space before the declaration", "<?xml", "  <?xml")
change("mark before the declaration", "<?xml", "\ufeff<?xml")
change("mark and line before the declaration", "<?xml", "\ufeff\n<?xml")
change("comment before the declaration", "<?xml", "<!-- cached -->\n<?xml")
change("two declarations", "<rss", '<?xml version="1.0"?>\n<rss')
change("text behind the end", "</rss>", "</rss>\nrendered in 7 ms")
change("element behind the end", "</rss>", "</rss>\n<script>x()</script>")
change("second end tag", "</rss>", "</rss></rss>")
change("second document", "</rss>", '</rss><rss version="2.0"></rss>')
change("comment with hyphens", "<item>", "<item><!-- a -- b -->")
change("comment with more hyphens", "<item>", "<item><!--- a --->")
change("comment behind the end", "</rss>", "</rss><!-- made by hand -->")
change("instruction in an item", "<item>", "<item><?php echo 1 ?>")
change("instruction with an ampersand", "<item>", "<item><?x a & b ?>")
change("declaration in an item", "<item>", "<item><!note x>")
change("section in a link", "https://canal.example/2", "<![CDATA[https://canal.example/2]]>")
change("two sections", "From Monday on.", "<![CDATA[From ]]><![CDATA[Monday]]> on.")
change("section in capitals", "From Monday on.", "<![CDATA[FROM MONDAY ON.]]> &")
change("no declaration", '<?xml version="1.0" encoding="utf-8"?>\n', "")
change("empty item", "<item>", "<item/><item>")
change("unknown element", "<pubDate>", "<weather>rain & wind</weather><pubDate>")
change("unknown element not closed", "<pubDate>", "<weather>rain<pubDate>")
change("unknown elements in the wrong order", "<pubDate>", "<a1><b1>x</a1></b1><pubDate>")
change("enclosure with a bare ampersand", "<pubDate>", '<enclosure url="https://canal.example/a?b=1&c=2" type="audio/mpeg" length="7"/><pubDate>')
change("category with a bare ampersand", "<pubDate>", "<category>locks & boats</category><pubDate>")
change("author with a bare ampersand", "<pubDate>", "<author>a@b.example (A & B)</author><pubDate>")
change("title not closed", "closed</title>", "closed", "atom")
change("id not closed", "n-2</id>", "n-2", "atom")
change("content not closed", "on.</content>", "on.", "atom")
change("link not closed", 'example/2"/>', 'example/2">', "atom")
change("entry not closed", "</entry>\n<entry>", "\n<entry>", "atom")
change("entry closed twice", "</entry>", "</entry></entry>", "atom")
change("stray end tag", "<updated>", "</p><updated>", "atom")
change("end tag in other case", "closed</title>", "closed</TITLE>", "atom")
change("attribute twice", '<content type="html"', '<content type="html" type="html"', "atom")
change("attribute without quotes", '<content type="html"', "<content type=html", "atom")
change("link without quotes", 'href="https://canal.example/2"', "href=https://canal.example/2", "atom")
change("prefix not declared", "<updated>", "<dc:creator>A. Keeper</dc:creator><updated>", "atom")
change("text behind the end", "</feed>", "</feed> rendered in 7 ms", "atom")
change("text before the beginning", "<?xml", "Notice: x\n<?xml", "atom")
change("author not closed", "<updated>", "<author><name>A. Keeper</author><updated>", "atom")
change("category not closed", "<updated>", '<category term="locks"><updated>', "atom")
change("XHTML with an open break", '<content type="html">From Monday on.', '<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">From<br>Monday on.</div>', "atom")
change("XHTML with a bare ampersand", '<content type="html">From Monday on.', '<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">From & on.</div>', "atom")
change("XHTML with an open paragraph", '<content type="html">From Monday on.', '<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>From Monday on.</div>', "atom")
change("item not closed", "</item>\n<item", "\n<item", "rdf")
change("title not closed", "closed</title>", "closed", "rdf")
change("prefix not declared", "</item>", "<dc:creator>A. Keeper</dc:creator></item>", "rdf")
change("prefix of the syntax not declared", ' xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"', "", "rdf")

change("image of the channel not closed", "<item>", "<image><url>https://canal.example/i.png</url><item>")
change("empty elements of the channel not closed", "<item>", '<cloud domain="canal.example"><atom:link rel="self" href="https://canal.example/feed"><item>')
change("link to itself not closed, before the description", "<item>", '<atom:link rel="self" href="https://canal.example/feed"><description>About</description><item>')
change("enclosure not closed", "<pubDate>", '<enclosure url="https://canal.example/a.mp3" type="audio/mpeg" length="7"><pubDate>')
change("thumbnail not closed", "<pubDate>", '<media:thumbnail url="https://canal.example/t.png"><pubDate>')
change("source not closed", "<pubDate>", '<source url="https://canal.example/feed">Canal<pubDate>')
change("element of a module not closed", "<pubDate>", "<slash:comments>7<pubDate>")
change("creator closed without its prefix", "<pubDate>", "<dc:creator>A. Keeper</creator><pubDate>")
change("creator closed by another name", "<pubDate>", "<dc:creator>A. Keeper</author><pubDate>")
change("creator closed with another prefix", "<pubDate>", "<dc:creator>A. Keeper</x:creator><pubDate>")
change("attribute with one quotation mark", '<guid isPermaLink="false">', '<guid isPermaLink="false>')
change("enclosure with one quotation mark", "<pubDate>", '<enclosure url="https://canal.example/a.mp3 type="audio/mpeg" length="7"/><pubDate>')
change("attribute with typographic quotation marks", '<guid isPermaLink="false">', "<guid isPermaLink=\u201dfalse\u201d>")
change("end tag with an attribute", "closed</title>", 'closed</title x="1">')
change("HTML before the declaration", "<?xml", "<br />\n<b>Warning</b>:  x in <b>/a.php</b> on line <b>3</b><br />\n<?xml")
change("HTML before the root", '<?xml version="1.0" encoding="utf-8"?>', "<b>Notice</b>: x<br>")
change("HTML between items", "</item>\n<item>", "</item>\n<br />\n<b>Notice</b>: x in <b>/a.php</b><br />\n<item>")
change("script between items", "</item>\n<item>", "</item>\n<script>var a = 1 && 2;</script>\n<item>")
change("document type of HTML", "<rss", "<!DOCTYPE html>\n<rss")
change("prefix declared without a namespace", '<rss version="2.0">', '<rss version="2.0" xmlns:dc="">')
change("prefix declared without a namespace and used", "<pubDate>", '<dc:creator xmlns:dc="">A. Keeper</dc:creator><pubDate>')
change("namespace of Atom", "<rss", '<rss xmlns="http://www.w3.org/2005/Atom"')
change("namespace of another format", "<rss", '<rss xmlns="http://canal.example/rss"')
change("references to controls", "Lock closed", "Lock &#150; it&#146;s closed")
change("references to controls in hexadecimal", "Lock closed", "Lock &#x96; it&#x92;s &#x93;closed&#x94;")
change("controls of Windows-1252", "Lock closed", "Lock \x96 it\x92s closed\x85")
change("swapped end tags of fields", "2</link>\n<pubDate>Sun, 01 Mar 2026 08:00:00 GMT</pubDate>", "2</pubDate>\n<pubDate>Sun, 01 Mar 2026 08:00:00 GMT</link>")
change("text closed behind its item", "on.</description></item>", "on.</item></description>")
change("root closed before the channel", "</channel></rss>", "</rss></channel>")
change("script in a text", "From Monday on.", "From <script>if (a<b && c>d) {}</script>Monday on.")
change("address in brackets in a text", "From Monday on.", "See <mailto:keeper@canal.example> from Monday on.")
change("name in brackets in an author", "<pubDate>", "<author>A. Keeper <a@canal.example></author><pubDate>")
change("section closed with a space", "From Monday on.", "<![CDATA[From Monday on.]] >")
change("section within a section", "From Monday on.", "<![CDATA[From <![CDATA[Monday]]> on.]]>")
change("section in lower case", "From Monday on.", "<![cdata[From Monday on.]]>")
change("namespace missing", ' xmlns="http://www.w3.org/2005/Atom"', "", "atom")
change("namespace missing and a bare ampersand", ' xmlns="http://www.w3.org/2005/Atom"><id>urn:canal', "><id>urn:canal&x", "atom")
change("namespace with https", "http://www.w3.org/2005/Atom", "https://www.w3.org/2005/Atom", "atom")
change("namespace with a slash", "http://www.w3.org/2005/Atom", "http://www.w3.org/2005/Atom/", "atom")
change("references to controls", "Lock closed", "Lock &#150; it&#146;s closed", "atom")
change("rating not closed", "<updated>", "<georss:point>1 2<updated>", "atom")
change("attribute with one quotation mark", 'href="https://canal.example/2"', 'href="https://canal.example/2', "atom")
change("swapped end tags", "closed</title>", "closed</id>", "atom")
change("media group not declared", "<updated>", "<media:group><media:title>x & y</media:title></media:group><updated>", "atom")
change("entity of the document type in an attribute", '<?xml version="1.0" encoding="utf-8"?>', '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE feed [\n<!ENTITY home "https://canal.example">\n]>', "atom")
change("HTML before the declaration", "<?xml", "<br />\n<b>Warning</b>: x<br />\n<?xml", "atom")
change("namespace of RSS 1.0 missing", ' xmlns="http://purl.org/rss/1.0/"', "", "rdf")

for name, data in {
    "latin bytes in UTF-8": sound["rss"].replace("Lock", "L\xf6ck").encode("latin-1"),
    "cut multibyte character": sound["rss"].encode().replace(b"Lock", b"L\xc3ck"),
    "Windows quotation marks in Latin 1": sound["rss"].replace("utf-8", "iso-8859-1").encode().replace(b"Lock", b"\x93Lock\x94"),
    "Windows-1252": sound["rss"].replace("utf-8", "windows-1252").replace("Lock", "caf\xe9 & Lock").encode("cp1252"),
    "UTF-16 with a bare ampersand": sound["rss"].replace("utf-8", "utf-16").replace("Lock", "a & Lock").encode("utf-16"),
    "KOI8-R": sound["rss"].replace("utf-8", "koi8-r").replace("Lock", "\u0448\u043b\u044e\u0437 & Lock").encode("koi8-r"),
}.items():
    add(f"rss: {name}", data)


def date(parsed):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", parsed) if parsed else None


def entry(found):
    return {
        "id": found.get("id"),
        "link": found.get("link"),
        "title": found.get("title"),
        "summary": found.get("summary"),
        "content": "".join(part.value for part in found.get("content", [])) or None,
        "published": date(found.get("published_parsed")),
        "updated": date(found["updated_parsed"]) if "updated" in found else None,
    }


def expectation(document):
    headers = {"content-type": "application/xml"}
    data = document if isinstance(document, bytes) else document.encode()
    # Cleaning and resolving are done by readers, not by the parser.
    found = feedparser.parse(data, sanitize_html=False, resolve_relative_uris=False, response_headers=headers)
    return {
        "bozo": bool(found.bozo),
        "title": found.feed.get("title"),
        "entries": [entry(e) for e in found.entries],
    }


with open(pathlib.Path(__file__).parent / "documents.ndjson", "w") as out:
    for name, document in DOCUMENTS.items():
        line = {"name": name}
        if isinstance(document, bytes):
            line["base64"] = base64.b64encode(document).decode()
        else:
            line["document"] = document
        line["feedparser"] = expectation(document)
        out.write(json.dumps(line, ensure_ascii=True) + "\n")
print(len(DOCUMENTS), "documents, feedparser", feedparser.__version__)
