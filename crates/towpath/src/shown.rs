//! Addresses as they are shown: without what only those should know who wrote them down.

/// A text (an error's, for example) in which every address is as [`address`] shows it. Addresses end where white space
/// or a quotation mark is.
pub(crate) fn text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '<' | '>');
        let (found, after) = after.split_at(after.find(ends).unwrap_or(after.len()));
        let told = found.trim_end_matches([':', ',', ';', '.', ')']);
        shown.push_str(before);
        push(&mut shown, told);
        shown.push_str(&found[told.len()..]);
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// An address without user and password, and with `?…` for its query. A path is shown as it is.
pub(crate) fn address(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let mut shown = format!("{scheme}://");
    push(&mut shown, rest);
    shown
}

/// Adds what follows `://`.
fn push(shown: &mut String, address: &str) {
    // However many there are: a browser's parser passes over them.
    let start = address.len() - address.trim_start_matches(['/', '\\']).len();
    let (slashes, address) = address.split_at(start);
    let (authority, path) = address.split_at(address.find(['/', '\\', '?', '#']).unwrap_or(address.len()));
    shown.push_str(slashes);
    shown.push_str(authority.rsplit_once('@').map_or(authority, |(_, host)| host));
    match path.split_once('?') {
        Some((path, _)) => {
            shown.push_str(path);
            shown.push_str("?…");
        }
        None => shown.push_str(path),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn addresses_lose_what_is_secret() {
        for (address, shown) in [
            ("https://host:8080/a/b#c", "https://host:8080/a/b#c"),
            ("https://user:pass@host/x?key=1", "https://host/x?…"),
            ("https://us@er:pa ss@host?key=a b", "https://host?…"),
            ("http:///user:pass@host/", "http:///host/"),
            ("https://host/@user?u=http://a:b@c/", "https://host/@user?…"),
            ("data/a?b@c.json", "data/a?b@c.json"),
        ] {
            assert_eq!(super::address(address), shown);
        }
    }

    #[test]
    fn so_do_those_in_texts() {
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
