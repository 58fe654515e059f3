//! Redacts credentials and query strings from URLs in logs, errors and pages.

/// Redacts every URL in a text, such as an error message. A URL ends at white space, a quotation mark, `<` or `>`.
pub fn text(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '<' | '>');
        let (url, after) = after.split_at(after.find(ends).unwrap_or(after.len()));
        // Punctuation after a URL belongs to the sentence.
        let trimmed = url.trim_end_matches([':', ',', ';', '.', ')']);
        redacted.push_str(before);
        push_redacted(&mut redacted, trimmed);
        redacted.push_str(&url[trimmed.len()..]);
        rest = after;
    }
    redacted.push_str(rest);
    redacted
}

/// Removes user and password from every URL in a text. Queries stay: the positions of a feed are in them.
pub fn credentials(text: &str) -> String {
    // Nearly all texts: this is called for every change of a follow.
    if !text.as_bytes().contains(&b'@') {
        return text.to_owned();
    }
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        redacted.push_str(before);
        let start = after.len() - after.trim_start_matches(['/', '\\']).len();
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '\\' | '?' | '#' | '"' | '<' | '>');
        let end = after[start..].find(ends).map_or(after.len(), |end| start + end);
        redacted.push_str(&after[..start]);
        // The last @ counts: a password may contain others.
        let authority = &after[start..end];
        redacted.push_str(authority.rsplit_once('@').map_or(authority, |(_, host)| host));
        rest = &after[end..];
    }
    redacted.push_str(rest);
    redacted
}

/// Redacts one URL: removes user and password, and replaces the query with `?…`. A file path is returned unchanged.
pub fn url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let mut redacted = format!("{scheme}://");
    push_redacted(&mut redacted, rest);
    redacted
}

/// Appends the part of a URL after `://`, redacted.
fn push_redacted(redacted: &mut String, address: &str) {
    // Any number of slashes: a browser's parser skips them, so user and password may follow a third one.
    let start = address.len() - address.trim_start_matches(['/', '\\']).len();
    let (slashes, address) = address.split_at(start);
    let (authority, path) = address.split_at(address.find(['/', '\\', '?', '#']).unwrap_or(address.len()));
    redacted.push_str(slashes);
    // The last @ counts: a password may contain others.
    redacted.push_str(authority.rsplit_once('@').map_or(authority, |(_, host)| host));
    match path.split_once('?') {
        Some((path, _)) => {
            redacted.push_str(path);
            // Query strings carry API keys and signatures. The ellipsis shows that something was cut.
            redacted.push_str("?…");
        }
        None => redacted.push_str(path),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn credentials_and_queries_of_a_url_are_removed() {
        for (address, shown) in [
            ("https://host:8080/a/b#c", "https://host:8080/a/b#c"),
            ("https://user:pass@host/x?key=1", "https://host/x?…"),
            ("https://us@er:pa ss@host?key=a b", "https://host?…"),
            ("http:///user:pass@host/", "http:///host/"),
            ("https://host/@user?u=http://a:b@c/", "https://host/@user?…"),
            ("data/a?b@c.json", "data/a?b@c.json"),
        ] {
            assert_eq!(super::url(address), shown);
        }
    }

    #[test]
    fn credentials_alone_are_removed_from_a_text() {
        for (text, shown) in [
            ("http://a:b@c/?d=1: the server answers 404", "http://c/?d=1: the server answers 404"),
            ("\"https://a:b@c\" and http:///a@d.", "\"https://c\" and http:///d."),
            ("http://c/@x?y=z@w, a@b", "http://c/@x?y=z@w, a@b"),
            ("://", "://"),
        ] {
            assert_eq!(super::credentials(text), shown);
        }
    }

    #[test]
    fn urls_in_a_text_are_redacted() {
        for (text, shown) in [
            ("http://a:b@c/?d=1: the server answers 404", "http://c/?…: the server answers 404"),
            ("to \"http://a@c/d\", and (http://x/?y=z).", "to \"http://c/d\", and (http://x/?…)."),
            ("://", "://"),
            ("no address?", "no address?"),
            ("ä://ö@ü/?ß ü", "ä://ü/?… ü"),
        ] {
            assert_eq!(super::text(text), shown);
        }
    }
}
