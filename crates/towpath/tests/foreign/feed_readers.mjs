// Reads a feed's newest document with parsers of feeds in JavaScript, which share nothing with towpath.
//
// Usage: feed_readers.mjs FORMAT URL, with FORMAT `atom`, `rss` or `json`. Prints, for each parser, its items as JSON. An
// item has a member for each field that the parser has a name for in this format; null where the parser found nothing.

import { Readable } from "node:stream";

import { extractFromJson, extractFromXml } from "@extractus/feed-extractor";
import { parseFeed as parseByRowan } from "@rowanmanning/feed-parser";
import FeedParser from "feedparser";
import { parseFeed as parseByFeedsmith } from "feedsmith";
import { parseFeed as parseByHtmlparser2 } from "htmlparser2";
import RssParser from "rss-parser";

const [format, url] = process.argv.slice(2);
const body = await (await fetch(url)).text();

// RSS has whole seconds.
const time = (value) => (value ? new Date(value).toISOString().slice(0, 19) : null);
const list = (values, field) => (values ?? []).map((value) => (field ? value[field] : value));

async function rssParser() {
  const { items } = await new RssParser().parseString(body);
  const common = ({ title, link, isoDate }) => ({ title, url: link, date: time(isoDate) });
  return items.map((item) =>
    format === "atom"
      ? { ...common(item), id: item.id, content: item.content, summary: item.summary, author: item.author }
      : {
          ...common(item),
          id: item.guid,
          content: item["content:encoded"],
          summary: item.content,
          author: item.creator,
          tags: list(item.categories),
          enclosure: item.enclosure?.url,
        },
  );
}

async function feedparser() {
  const parser = Readable.from([body]).pipe(new FeedParser({ addmeta: false }));
  const items = [];
  for await (const item of parser) {
    items.push({
      id: item.guid,
      title: item.title,
      date: time(item.pubdate),
      content: item.description,
      // It repeats the content where there is no summary.
      summary: item.summary === item.description ? null : item.summary,
      tags: item.categories,
      enclosures: list(item.enclosures, "url"),
      image: item.image.url,
    });
  }
  return items;
}

function rowan() {
  return parseByRowan(body).items.map((item) => ({
    id: item.id,
    title: item.title,
    url: item.url,
    date: time(item.published ?? item.updated),
    // In RSS it takes the date of publication for it.
    ...(format === "atom" ? { updated: time(item.updated) } : {}),
    // In RSS it takes elements of Atom for those of RSS.
    ...(format === "atom" ? { authors: list(item.authors, "name") } : {}),
    // Its content is left out: it resolves the character references of HTML a second time.
    summary: item.description,
    tags: list(item.categories, "term"),
    enclosures: list(item.media, "url"),
    image: item.image?.url,
  }));
}

function feedsmith() {
  const { feed } = parseByFeedsmith(body);
  if (format === "atom") {
    return feed.entries.map((entry) => ({
      id: entry.id,
      title: entry.title?.value,
      url: entry.links?.find(({ rel }) => rel === "alternate")?.href,
      date: time(entry.published ?? entry.updated),
      updated: time(entry.updated),
      content: entry.content?.value,
      summary: entry.summary?.value,
      authors: list(entry.authors, "name"),
      tags: list(entry.categories, "term"),
      enclosures: list(entry.links?.filter(({ rel }) => rel === "enclosure"), "href"),
      image: entry.media?.thumbnails?.[0].url,
    }));
  }
  if (format === "rss") {
    return feed.items.map((item) => ({
      id: item.guid?.value,
      title: item.title,
      url: item.link,
      date: time(item.pubDate),
      content: item.content?.encoded,
      summary: item.description,
      authors: list(item.dc?.creators),
      tags: list(item.categories, "name"),
      enclosures: list(item.enclosures, "url"),
      image: item.media?.thumbnails?.[0].url,
    }));
  }
  return feed.items.map((item) => ({
    id: item.id,
    title: item.title,
    url: item.url,
    content: item.content_html ?? item.content_text,
    summary: item.summary,
    authors: list(item.authors, "name"),
    tags: list(item.tags),
    enclosures: list(item.attachments, "url"),
    image: item.image,
  }));
}

function htmlparser2() {
  const { items } = parseByHtmlparser2(body, { xmlMode: true });
  // Of Atom's dates it takes the last change.
  return items.map(({ id, title, link, pubDate }) => ({
    id,
    title,
    url: link,
    [format === "atom" ? "updated" : "date"]: time(pubDate),
  }));
}

function extractus() {
  const options = { normalization: true, descriptionMaxLen: 0 };
  const { entries } =
    format === "json" ? extractFromJson(JSON.parse(body), options) : extractFromXml(body, options);
  return entries.map(({ id, title, published }) => ({
    id,
    title,
    ...(format === "json" ? {} : { [format === "atom" ? "updated" : "date"]: time(published) }),
  }));
}

const parsers = { feedsmith, extractus };
if (format !== "json") {
  Object.assign(parsers, { rssParser, feedparser, rowan, htmlparser2 });
}
const read = {};
for (const [name, parse] of Object.entries(parsers)) {
  const items = await parse();
  read[name] = items.map((item) =>
    Object.fromEntries(Object.entries(item).map(([field, value]) => [field, value || null])),
  );
}
console.log(JSON.stringify(read));
