//! URIs of nodes: `xmpp:feeds.example.com?;node=kev%3Forder%3Dmodified` (RFC 5122; XEP-0060, 12.22).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::jid;
use crate::smart::spec::FeedOrder;

/// Characters that stay unencoded in a node name, and in an address.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const ADDRESS: &AsciiSet = &UNRESERVED.remove(b'@').remove(b'/');

/// URI of a service's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUri {
    /// Address of the service.
    pub service: String,
    /// Name of the node.
    pub node: String,
}

impl NodeUri {
    /// Parses a URI.
    ///
    /// # Errors
    ///
    /// Returns an explanation for a person.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("xmpp:").ok_or("it does not begin with xmpp:")?;
        // RFC 5122 puts the account to log in with between the slashes; readers here log in with their own.
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let decode = |text: &str| percent_decode_str(text).decode_utf8().map(std::borrow::Cow::into_owned);
        let service = decode(path).ok().and_then(|path| jid::normalised(&path));
        let service = service.ok_or_else(|| format!("{path:?} is not an address of XMPP"))?;
        let node = query.split(';').find_map(|pair| pair.strip_prefix("node="));
        let node = node.and_then(|node| decode(node).ok()).filter(|node| !node.is_empty());
        let node =
            node.ok_or("it names no node, as xmpp:feeds.example.com?;node=kev%3Forder%3Dmodified does")?;
        Ok(Self { service, node })
    }

    /// Returns the order that the node's name asks for ("XMPP Pull/Push": "a query string-like format").
    pub fn order(&self) -> Option<FeedOrder> {
        let (_, query) = self.node.split_once('?')?;
        query.split('&').find_map(|pair| FeedOrder::parse(pair.strip_prefix("order=")?))
    }
}

impl std::fmt::Display for NodeUri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "xmpp:{}", utf8_percent_encode(&self.service, ADDRESS))?;
        write!(f, "?;node={}", utf8_percent_encode(&self.node, UNRESERVED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let text = "xmpp:feeds.example.com?;node=kev%3Forder%3Dmodified";
        let uri = NodeUri::parse(text).unwrap();
        assert_eq!((uri.service.as_str(), uri.node.as_str()), ("feeds.example.com", "kev?order=modified"));
        assert_eq!(uri.to_string(), text);
        let loose = NodeUri::parse("xmpp:a@b.c?pubsub;action=subscribe;node=kev?order=modified").unwrap();
        assert_eq!((loose.service.as_str(), loose.node.as_str()), ("a@b.c", "kev?order=modified"));
        for bad in ["http://a", "xmpp:", "xmpp:a", "xmpp:a?;node=", "xmpp:a b?;node=c", "xmpp:a?node2=b"] {
            assert!(NodeUri::parse(bad).is_err(), "{bad}");
        }
    }
}
