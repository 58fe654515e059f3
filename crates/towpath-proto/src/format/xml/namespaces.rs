//! Namespaces of the XML formats.

/// Atom 1.0 (RFC 4287, section 2).
pub const ATOM: &str = "http://www.w3.org/2005/Atom";
/// Feed History and RFC 5005.
pub const HISTORY: &str = "http://purl.org/syndication/history/1.0";
/// Tombstones (RFC 6721, section 2).
pub const TOMBSTONES: &str = "http://purl.org/atompub/tombstones/1.0";
/// Smart Feeds, in Atom documents.
pub const FANOUT: &str = "http://fanout.org/protocol/atom";
/// XHTML, for Atom's content of that type.
pub const XHTML: &str = "http://www.w3.org/1999/xhtml";
/// RSS 1.0's content module, also used in RSS 2.0.
pub const CONTENT: &str = "http://purl.org/rss/1.0/modules/content/";
/// Dublin Core, used in all versions of RSS.
pub const DUBLIN_CORE: &str = "http://purl.org/dc/elements/1.1/";
/// Media RSS.
pub(crate) const MEDIA: &str = "http://search.yahoo.com/mrss/";
/// Our own namespace, for everything that a format cannot express.
pub const TOWPATH: &str = "urn:x-towpath:1";

/// Returns the namespace that a prefix nearly always stands for.
pub(super) fn well_known(prefix: &str) -> Option<&'static str> {
    Some(match prefix {
        "atom" | "atom10" => ATOM,
        "content" => CONTENT,
        "dc" => DUBLIN_CORE,
        "media" => MEDIA,
        "rdf" => "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
        "xhtml" => XHTML,
        "fh" => HISTORY,
        "at" => TOMBSTONES,
        "itunes" => "http://www.itunes.com/dtds/podcast-1.0.dtd",
        "slash" => "http://purl.org/rss/1.0/modules/slash/",
        "sy" => "http://purl.org/rss/1.0/modules/syndication/",
        "wfw" => "http://wellformedweb.org/CommentAPI/",
        "thr" => "http://purl.org/syndication/thread/1.0",
        "georss" => "http://www.georss.org/georss",
        "feedburner" => "http://rssnamespace.org/feedburner/ext/1.0",
        _ => return None,
    })
}

/// Namespaces that the readers interpret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ns {
    /// No namespace, or any of RSS's historical namespaces.
    Rss,
    /// Atom 1.0, 0.3 and the drafts between.
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
    pub(super) fn of(name: &str) -> Self {
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
