//! What the first bytes of a feed document tell, without reading its entries.

use super::FeedLink;
use super::sniff;
use super::xml::{Ns, Token, XmlReader};

/// The most links that are looked at.
const MAX_LINKS: usize = 256;

/// What kind of XML document it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// `atom:feed`, or one entry as a document.
    Atom,
    /// RSS of any version.
    Rss,
    /// A list of feeds.
    Opml,
    /// Something else.
    Other,
}

/// A document's head: what stands before its first entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedHead {
    /// The document element.
    pub root: Root,
    /// The feed's own links, absolute where the base is known.
    pub links: Vec<FeedLink>,
    /// Whether it has elements of Feed History or RFC 5005.
    pub has_history: bool,
    /// Whether it has the cursors of Smart Feeds.
    pub has_cursors: bool,
}

impl FeedHead {
    /// Whether a link has this relation.
    pub fn has_rel(&self, rel: &str) -> bool {
        self.links.iter().any(|link| link.rel.eq_ignore_ascii_case(rel))
    }
}

/// Reads as much of an XML document's head as `start`, its first bytes, holds. `None` where no element begins
/// there. What is cut off or broken ends the reading; what came before counts.
pub fn skim(start: &[u8], content_type: Option<&str>, base_url: Option<&str>) -> Option<FeedHead> {
    let (text, _) = sniff::decode(start, content_type);
    let mut xml = XmlReader::new(&text, base_url);
    let root = loop {
        match xml.next().ok()? {
            Token::Start(tag) => break tag,
            Token::Text(_) => {}
            Token::End | Token::Eof => return None,
        }
    };
    let root = match (root.ns, root.local) {
        (Ns::Atom, "feed" | "entry") => Root::Atom,
        (Ns::Rss, "rss") | (Ns::Rdf, "RDF") => Root::Rss,
        (_, "opml") => Root::Opml,
        _ => Root::Other,
    };
    let mut head = FeedHead { root, links: Vec::new(), has_history: false, has_cursors: false };
    while let Ok(token) = xml.next() {
        let Token::Start(tag) = token else {
            if matches!(token, Token::Eof) {
                break;
            }
            continue;
        };
        let step = match (tag.ns, tag.local) {
            (Ns::Atom, "entry") | (Ns::Rss, "item") => break,
            (Ns::Rss, "channel") => continue,
            (Ns::History, _) => {
                head.has_history = true;
                xml.skip()
            }
            (Ns::Fanout, _) => {
                head.has_cursors = true;
                xml.skip()
            }
            (Ns::Atom, "link") if head.links.len() < MAX_LINKS => {
                head.links.extend(link(&mut xml));
                xml.skip()
            }
            _ => xml.skip(),
        };
        if step.is_err() {
            break;
        }
    }
    Some(head)
}

fn link(xml: &mut XmlReader<'_>) -> Option<FeedLink> {
    let rel = xml.attribute("rel").ok()?.map_or_else(|| "alternate".to_owned(), |rel| rel.into_owned());
    let media_type = xml.attribute("type").ok()?.map(|t| t.into_owned());
    let href = xml.attribute("href").ok()??;
    Some(FeedLink { rel, href: xml.resolve(&href).ok()?, media_type })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(xml: &str) -> FeedHead {
        skim(xml.as_bytes(), None, Some("https://a.example/feeds/x")).unwrap()
    }

    #[test]
    fn links_and_namespaces_of_the_head_are_found() {
        let atom = "<?xml version='1.0'?><a:feed xmlns:a='http://www.w3.org/2005/Atom' \
            xmlns:f='http://purl.org/syndication/history/1.0'><a:title>T <b>x</b></a:title>\
            <a:link rel='prev-archive' href='../a/1'/><f:archive/><a:entry><a:link rel='no' href='/'/>";
        let found = head(atom);
        assert_eq!((found.root, found.has_history, found.has_cursors), (Root::Atom, true, false));
        assert_eq!(found.links.len(), 1);
        assert_eq!(found.links[0].href, "https://a.example/a/1");
        assert!(found.has_rel("Prev-Archive"));
        let rss = "<rss version='2.0' xmlns:atom='http://www.w3.org/2005/Atom'><channel><title>x</title>\
            <atom:link rel='http://api.friendfeed.com/2008/03#sup' href='http://a/sup.json#1'/><item>";
        assert_eq!((head(rss).root, head(rss).links.len()), (Root::Rss, 1));
        let smart = "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:fo='http://fanout.org/protocol/atom'>\
            <fo:last_cursor>1</fo:last_cursor>";
        assert!(head(smart).has_cursors);
    }

    #[test]
    fn a_namespace_that_is_only_declared_or_quoted_means_nothing() {
        let plain = "<rss xmlns:fh='http://purl.org/syndication/history/1.0'><channel>\
            <description>http://purl.org/syndication/history/1.0</description></channel></rss>";
        assert!(!head(plain).has_history);
        assert_eq!(head("<opml>").root, Root::Opml);
        assert_eq!(head("<html>").root, Root::Other);
    }

    #[test]
    fn what_is_cut_off_or_broken_ends_the_reading() {
        assert_eq!(skim(b"", None, None), None);
        assert_eq!(skim(b"{}", None, None), None);
        assert_eq!(skim(b"<rss", None, None), None);
        assert_eq!(head("<rss><channel><title>cut").links, []);
        assert_eq!(head("<rss><channel></rss>").root, Root::Rss);
        assert_eq!(head(&format!("<rss>{}", "<channel>".repeat(10_000))).root, Root::Rss);
    }

    proptest! {
        /// Whatever is cut off: the root is told as soon as it is there, and links only grow in number.
        #[test]
        fn more_of_a_document_tells_no_less(cut in 0..260_usize) {
            let whole = "<feed xmlns='http://www.w3.org/2005/Atom'><link rel='self' href='/a'/><title>x &amp; y\
                </title><link href='/b'/><x:y xmlns:x='urn:x'><![CDATA[<link/>]]></x:y><link rel='next' href='?p=2'/>\
                <entry><link href='/c'/></entry></feed>";
            let (some, all) = (skim(&whole.as_bytes()[..cut.min(whole.len())], None, None), head(whole));
            if let Some(some) = some {
                prop_assert_eq!(some.root, all.root);
                prop_assert!(some.links.len() <= all.links.len());
            }
            prop_assert_eq!(all.links.len(), 3);
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            skim(&bytes, None, None);
            skim(&[b"<feed xmlns='http://www.w3.org/2005/Atom'>", bytes.as_slice()].concat(), None, None);
        }
    }
}
