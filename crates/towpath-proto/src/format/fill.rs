//! Values that feed readers show for fields that an item lacks: the media description, the address of an enclosure.

use serde_json::Value;

use super::feed_document::relation;
use super::item_builder;
use super::json_feed;
use super::xml::{MEDIA, Ns, XmlReader, XmlToken};
use crate::item::Item;

/// Fills absent summaries and URLs from stored elements and members.
pub(crate) fn fill(items: &mut [Item]) {
    for item in items.iter_mut().filter(|item| item.url.is_none() || item.summary.is_none()) {
        let found = Substitutes::of(item);
        item.url = item.url.take().or(found.url);
        // A summary that repeats the content would only cost space.
        if item.content.is_none() {
            item.summary = item.summary.take().or(found.summary);
        }
    }
}

#[derive(Default)]
struct Substitutes {
    url: Option<String>,
    summary: Option<String>,
}

impl Substitutes {
    fn of(item: &Item) -> Self {
        let mut found = Self::default();
        let elements = item.extra.get(item_builder::EXTRA).and_then(Value::as_array);
        for element in elements.into_iter().flatten().filter_map(Value::as_str) {
            // Elements were stored by the reader of the document, so errors do not occur.
            let _ = found.element(element);
        }
        if let Some(members) = item.extra.get(json_feed::EXTRA) {
            found.members(members);
        }
        found
    }

    /// Takes the first addresses and description of an element, and of those within it: `media:group`.
    fn element(&mut self, element: &str) -> Result<(), super::FormatError> {
        let mut xml = XmlReader::new(element, None);
        loop {
            let tag = match xml.next()? {
                XmlToken::Start(tag) => tag,
                XmlToken::Eof => return Ok(()),
                XmlToken::Text(_) | XmlToken::End => continue,
            };
            let prefix = tag.name.split_once(':').map(|(prefix, _)| prefix);
            let is_media = tag.ns == Ns::Other && xml.bound_to(prefix) == MEDIA;
            let attribute = match (tag.ns, tag.local) {
                (_, "description") if is_media => {
                    let text = xml.trimmed_text()?;
                    self.summary = self.summary.take().or(Some(text)).filter(|text| !text.is_empty());
                    continue;
                }
                (_, "content" | "player") if is_media => "url",
                (Ns::Rss, "enclosure") => "url",
                (Ns::Atom, "link")
                    if xml.attribute("rel")?.is_some_and(|rel| relation(&rel) == "enclosure") =>
                {
                    "href"
                }
                _ => continue,
            };
            if self.url.is_none() {
                let url = xml.attribute(attribute)?.map(|url| url.trim().to_owned());
                self.url = url.filter(|url| !url.is_empty());
            }
        }
    }

    /// Takes the addresses of a JSON Feed's item: the page that it is about, else its first attachment.
    fn members(&mut self, members: &Value) {
        let external = members.get("external_url").and_then(Value::as_str);
        let attached = members.pointer("/attachments/0/url").and_then(Value::as_str);
        self.url = self.url.take().or(external.or(attached).map(str::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use crate::format::{ReadOptions, read};

    #[test]
    fn media_and_enclosures_fill_what_is_absent() {
        let items = |text: &str, fill: bool| {
            read(text.as_bytes(), &ReadOptions { fill, ..ReadOptions::default() }).unwrap().items
        };
        let rss = r#"<rss version="2.0" xmlns:m="http://search.yahoo.com/mrss/"><channel>
            <item><guid isPermaLink="false">1</guid><enclosure url="https://a.example/1.mp3" type="audio/mpeg" length="3"/></item>
            <item><guid isPermaLink="false">2</guid><m:group><m:content url="https://a.example/2.mp4"/>
                <m:description>Ten &amp; boats</m:description></m:group></item>
            <item><guid isPermaLink="false">3</guid><link>https://a.example/3</link><description>Own</description>
                <m:description>Other</m:description><m:content url="https://a.example/3.mp4"/></item>
            </channel></rss>"#;
        let found = items(rss, true);
        assert_eq!(found[0].url.as_deref(), Some("https://a.example/1.mp3"));
        assert_eq!(found[1].url.as_deref(), Some("https://a.example/2.mp4"));
        assert_eq!(found[1].summary.as_deref(), Some("Ten & boats"));
        assert_eq!(
            (found[2].url.as_deref(), found[2].summary.as_deref()),
            (Some("https://a.example/3"), Some("Own"))
        );
        // A follower of our own documents must get the items that were published.
        assert_eq!(items(rss, false)[1].url, None);
        let json = r#"{"version":"https://jsonfeed.org/version/1.1","items":[
            {"id":"1","attachments":[{"url":"https://a.example/1.mp3"}]},
            {"id":"2","external_url":"https://b.example/","attachments":[{"url":"https://a.example/2.mp3"}]}]}"#;
        let found = items(json, true);
        assert_eq!(found[0].url.as_deref(), Some("https://a.example/1.mp3"));
        assert_eq!(found[1].url.as_deref(), Some("https://b.example/"));
    }
}
