//! Addresses (RFC 7622), as far as a service compares them. The server has authenticated the senders.

/// Returns the address without its resource.
pub fn bare(jid: &str) -> &str {
    jid.split_once('/').map_or(jid, |(bare, _)| bare)
}

/// Returns the part after the first slash, if any.
pub fn resource(jid: &str) -> Option<&str> {
    jid.split_once('/').map(|(_, resource)| resource)
}

/// Returns the domain of the address.
pub fn domain(jid: &str) -> &str {
    let bare = bare(jid);
    bare.split_once('@').map_or(bare, |(_, domain)| domain)
}

/// Returns the part before the `@`, if any.
pub fn local(jid: &str) -> Option<&str> {
    bare(jid).split_once('@').map(|(local, _)| local)
}

/// Maximum length of a part, in bytes (RFC 7622, 3.1).
const MAX_PART: usize = 1023;

/// Returns the address in its normal form: local part and domain in lower case, the resource unchanged.
/// `None` for an invalid address.
pub fn normalised(jid: &str) -> Option<String> {
    let part = |text: &str| !text.is_empty() && text.len() <= MAX_PART;
    // RFC 7622 forbids these characters in a local part; some of them would also need escaping in a stanza.
    let allowed =
        |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '&' | '\'' | '<' | '>');
    let (bare, domain) = (bare(jid), domain(jid));
    let fits = part(domain)
        && local(jid).is_none_or(part)
        && resource(jid).is_none_or(part)
        && domain.chars().all(|c| allowed(c) && !matches!(c, '@' | '/' | ':'))
        && bare.chars().all(allowed)
        && jid.chars().all(|c| !c.is_control());
    if !fits {
        return None;
    }
    // RFC 7622 compares local part and domain case-insensitively, resources exactly.
    let mut normal = bare.to_lowercase();
    if let Some(resource) = resource(jid) {
        normal.push('/');
        normal.push_str(resource);
    }
    Some(normal)
}

/// Returns `true` if two addresses belong to the same account.
pub fn same_account(a: &str, b: &str) -> bool {
    bare(a).to_lowercase() == bare(b).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let jid = "Alice@Example.net/1/a@b";
        assert_eq!((local(jid), domain(jid), resource(jid)), (Some("Alice"), "Example.net", Some("1/a@b")));
        assert_eq!(normalised(jid).unwrap(), "alice@example.net/1/a@b");
        assert_eq!(
            (local("a.example"), domain("a.example"), resource("a.example")),
            (None, "a.example", None)
        );
        assert!(same_account("A@b.c/x", "a@B.C"));
        assert!(!same_account("a@b.c", "b.c"));
    }

    #[test]
    fn what_is_no_address() {
        let long = "a".repeat(MAX_PART + 1);
        for bad in ["", "@b.c", "a@", "a@b.c/", "a b@c", "a@b@c", "a@b.c/\n", "<@b", &long, "a@b:1"] {
            assert_eq!(normalised(bad), None, "{bad:.40}");
        }
    }
}
