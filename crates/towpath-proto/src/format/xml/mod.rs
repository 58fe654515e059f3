//! What the XML formats share: namespaces, a bounded reader, elements kept as text, a writer.

mod capture;
mod errors;
pub(crate) mod place;
mod reader;
mod references;
mod repeat;
mod write;

pub(crate) use reader::{Tag, Token, XmlReader};
pub use write::{XmlWriter, escape_attribute, escape_text};
pub(crate) use write::{push_attribute, push_text};

/// Atom 1.0 (RFC 4287, section 2).
pub const ATOM: &str = "http://www.w3.org/2005/Atom";
/// Feed History and RFC 5005.
pub const HISTORY: &str = "http://purl.org/syndication/history/1.0";
/// Tombstones (RFC 6721, section 2).
pub const TOMBSTONES: &str = "http://purl.org/atompub/tombstones/1.0";
/// Smart Feeds' elements of Atom documents.
pub const FANOUT: &str = "http://fanout.org/protocol/atom";
/// XHTML, for Atom's content of that type.
pub const XHTML: &str = "http://www.w3.org/1999/xhtml";
/// RSS 1.0's content module, used in RSS 2.0 as well.
pub const CONTENT: &str = "http://purl.org/rss/1.0/modules/content/";
/// Dublin Core, used in every RSS.
pub const DUBLIN_CORE: &str = "http://purl.org/dc/elements/1.1/";
/// Our own marks on what a format has no place for, so that an item comes back as it was.
pub const TOWPATH: &str = "urn:x-towpath:1";

/// The namespaces that mean something to the readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ns {
    /// No namespace, or one of those that RSS was given over the years.
    Rss,
    /// Atom 1.0, or 0.3 and the drafts between, which are read as such.
    Atom,
    Rdf,
    Content,
    DublinCore,
    History,
    Tombstones,
    Fanout,
    Towpath,
    Xhtml,
    Xml,
    Other,
}

impl Ns {
    fn of(name: &str) -> Self {
        match name {
            ATOM | "http://purl.org/atom/ns#" => Self::Atom,
            ""
            | "http://purl.org/rss/1.0/"
            | "http://my.netscape.com/rdf/simple/0.9/"
            | "http://channel.netscape.com/rdf/simple/0.9/"
            | "http://backend.userland.com/rss"
            | "http://backend.userland.com/rss2"
            | "http://backend.userland.com/RSS2"
            | "http://blogs.law.harvard.edu/tech/rss" => Self::Rss,
            CONTENT => Self::Content,
            DUBLIN_CORE => Self::DublinCore,
            HISTORY => Self::History,
            TOMBSTONES => Self::Tombstones,
            FANOUT => Self::Fanout,
            TOWPATH => Self::Towpath,
            XHTML => Self::Xhtml,
            "http://www.w3.org/1999/02/22-rdf-syntax-ns#" => Self::Rdf,
            "http://www.w3.org/XML/1998/namespace" => Self::Xml,
            draft if draft.starts_with("http://purl.org/atom/ns#draft-ietf-atompub-format-") => Self::Atom,
            _ => Self::Other,
        }
    }
}

/// Whether XML 1.0 allows the character (section 2.2).
pub(crate) fn is_xml_char(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => true,
        '\u{FFFE}' | '\u{FFFF}' => false,
        c => c >= ' ',
    }
}

/// Whether every character of `text` may stand in XML 1.0.
pub(crate) fn is_xml_text(text: &str) -> bool {
    text.chars().all(is_xml_char)
}
