//! Reading of a feed document's head from its first bytes, without its entries.

use super::feed_document::{FeedLink, relation};
use super::sniff;
use super::xml::{Ns, XmlReader, XmlToken};

/// Maximum number of links.
const MAX_LINKS: usize = 256;

/// Document element of an XML document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootElement {
    /// `atom:feed`, or an entry as a document.
    Atom,
    /// RSS of any version.
    Rss,
    /// Feed list.
    Opml,
    /// Any other element.
    Other,
}

/// Head of a document: everything before its first entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPeek {
    /// Document element.
    pub root: RootElement,
    /// Links of the feed, absolute if the base is known.
    pub links: Vec<FeedLink>,
    /// `true` with elements of Feed History or RFC 5005.
    pub has_history: bool,
    /// `true` with the cursors of Smart Feeds.
    pub has_cursors: bool,
}

impl FeedPeek {
    /// Returns `true` if a link has this relation.
    pub fn has_rel(&self, rel: &str) -> bool {
        self.links.iter().any(|link| link.rel.eq_ignore_ascii_case(rel))
    }
}

/// Parses the head of an XML document from `start`, its first bytes. `None` without an element. A truncated
/// or malformed rest ends the parse, and everything before it counts.
pub fn peek(start: &[u8], content_type: Option<&str>, base_url: Option<&str>) -> Option<FeedPeek> {
    let (text, _) = sniff::decode(start, content_type);
    let mut xml = XmlReader::new(&text, base_url);
    let root = loop {
        // Cut input is normal here, because only the first bytes were fetched.
        match xml.next().ok()? {
            XmlToken::Start(tag) => break tag,
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => return None,
        }
    };
    let root = match (root.ns, root.local) {
        (Ns::Atom, "feed" | "entry") => RootElement::Atom,
        (Ns::Rss, "rss") | (Ns::Rdf, "RDF") => RootElement::Rss,
        (_, "opml") => RootElement::Opml,
        _ => RootElement::Other,
    };
    let mut head = FeedPeek { root, links: Vec::new(), has_history: false, has_cursors: false };
    while let Ok(token) = xml.next() {
        let XmlToken::Start(tag) = token else {
            // Text and end tags between the head's elements carry nothing.
            if matches!(token, XmlToken::Eof) {
                break;
            }
            continue;
        };
        let step = match (tag.ns, tag.local) {
            (Ns::Atom, "entry") | (Ns::Rss, "item") => break,
            // Descends: RSS 2.0 has the head inside the channel.
            (Ns::Rss, "channel") => continue,
            (Ns::History, _) => {
                head.has_history = true;
                xml.skip()
            }
            (Ns::Fanout, _) => {
                head.has_cursors = true;
                xml.skip()
            }
            // Bounds the work for a hostile head with endless links.
            (Ns::Atom, "link") if head.links.len() < MAX_LINKS => {
                head.links.extend(link(&mut xml));
                xml.skip()
            }
            _ => xml.skip(),
        };
        // The head read so far is still useful.
        if step.is_err() {
            break;
        }
    }
    Some(head)
}

fn link(xml: &mut XmlReader<'_>) -> Option<FeedLink> {
    let rel = xml.attribute("rel").ok()?.map_or("alternate".to_owned(), |rel| relation(&rel).into_owned());
    let media_type = xml.attribute("type").ok()?.map(|t| t.into_owned());
    let href = xml.attribute("href").ok()??;
    Some(FeedLink { rel, href: xml.resolve(&href).ok()?, media_type })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(xml: &str) -> FeedPeek {
        peek(xml.as_bytes(), None, Some("https://a.example/feeds/x")).unwrap()
    }

    #[test]
    fn links_and_namespaces_of_the_head_are_found() {
        let atom = "<?xml version='1.0'?><a:feed xmlns:a='http://www.w3.org/2005/Atom' \
            xmlns:f='http://purl.org/syndication/history/1.0'><a:title>T <b>x</b></a:title>\
            <a:link rel='prev-archive' href='../a/1'/><f:archive/><a:entry><a:link rel='no' href='/'/>";
        let found = head(atom);
        assert_eq!((found.root, found.has_history, found.has_cursors), (RootElement::Atom, true, false));
        assert_eq!(found.links.len(), 1);
        assert_eq!(found.links[0].href, "https://a.example/a/1");
        assert!(found.has_rel("Prev-Archive"));
        let relation = "<feed xmlns='http://www.w3.org/2005/Atom'>\
            <link rel='http://www.iana.org/assignments/relation/prev-archive' href='/1'/>";
        assert!(head(relation).has_rel("prev-archive"));
        let rss = "<rss version='2.0' xmlns:atom='http://www.w3.org/2005/Atom'><channel><title>x</title>\
            <atom:link rel='http://api.friendfeed.com/2008/03#sup' href='http://a/sup.json#1'/><item>";
        assert_eq!((head(rss).root, head(rss).links.len()), (RootElement::Rss, 1));
        let smart = "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:fo='http://fanout.org/protocol/atom'>\
            <fo:last_cursor>1</fo:last_cursor>";
        assert!(head(smart).has_cursors);
    }

    #[test]
    fn a_namespace_that_is_only_declared_or_quoted_means_nothing() {
        let plain = "<rss xmlns:fh='http://purl.org/syndication/history/1.0'><channel>\
            <description>http://purl.org/syndication/history/1.0</description></channel></rss>";
        assert!(!head(plain).has_history);
        assert_eq!(head("<opml>").root, RootElement::Opml);
        assert_eq!(head("<html>").root, RootElement::Other);
    }

    #[test]
    fn what_is_cut_off_or_broken_ends_the_reading() {
        assert_eq!(peek(b"", None, None), None);
        assert_eq!(peek(b"{}", None, None), None);
        assert_eq!(peek(b"<rss", None, None), None);
        assert_eq!(head("<rss><channel><title>cut").links, []);
        assert_eq!(head("<rss><channel></rss>").root, RootElement::Rss);
        assert_eq!(head(&format!("<rss>{}", "<channel>".repeat(10_000))).root, RootElement::Rss);
    }

    proptest! {
        /// For any cut: the root is known as soon as it is there, and more bytes never give fewer links.
        #[test]
        fn more_of_a_document_tells_no_less(cut in 0..260_usize) {
            let whole = "<feed xmlns='http://www.w3.org/2005/Atom'><link rel='self' href='/a'/><title>x &amp; y\
                </title><link href='/b'/><x:y xmlns:x='urn:x'><![CDATA[<link/>]]></x:y><link rel='next' href='?p=2'/>\
                <entry><link href='/c'/></entry></feed>";
            let (some, all) = (peek(&whole.as_bytes()[..cut.min(whole.len())], None, None), head(whole));
            if let Some(some) = some {
                prop_assert_eq!(some.root, all.root);
                prop_assert!(some.links.len() <= all.links.len());
            }
            prop_assert_eq!(all.links.len(), 3);
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            peek(&bytes, None, None);
            peek(&[b"<feed xmlns='http://www.w3.org/2005/Atom'>", bytes.as_slice()].concat(), None, None);
        }
    }
}
