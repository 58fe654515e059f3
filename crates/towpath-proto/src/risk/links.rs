//! Links that hide their target, or lead to programs.

use super::detector::{Detector, Signals};
use super::view::boundary;
use crate::format::html::HtmlLink;

/// Inspects a link of an HTML text; `page` is the item's own URL.
pub(super) fn inspect_link(link: &HtmlLink, page: Option<&str>, signals: &mut Signals) {
    signals.set_if(Detector::ActiveUrl, is_active_link(&link.href));
    inspect_address(&link.href, signals);
    let target = host(&link.href).or_else(|| host(page?));
    if let (Some(shown), Some(target)) = (shown_host(&link.text), target) {
        signals.set_if(Detector::MismatchedLink, !same_site(shown, target));
    }
}

/// Inspects the URLs in a plain text.
pub(super) fn inspect_plain(text: &str, signals: &mut Signals) {
    for address in addresses(text) {
        inspect_address(address, signals);
    }
}

/// Inspects the item's own URL.
pub(super) fn inspect_target(url: &str, signals: &mut Signals) {
    signals.set_if(Detector::ActiveUrl, is_active_link(url));
    let link = signals.link;
    inspect_address(url, signals);
    // The item's own URL is not a link in its text.
    signals.link = link;
}

fn inspect_address(url: &str, signals: &mut Signals) {
    let Some(authority) = authority(url) else { return };
    signals.link = true;
    let host = host_of(authority);
    signals.set_if(Detector::AddressHost, is_address(host));
    if let Some((user, _)) = authority.rsplit_once('@') {
        signals.set_if(Detector::UserinfoUrl, user.contains('.'));
    }
    if !host.is_ascii() || host.contains("xn--") || host.contains("XN--") {
        signals.set(Detector::PunycodeHost);
        signals.set_if(Detector::HomographHost, imitates_latin(host));
    }
    inspect_file_name(url, signals);
}

fn inspect_file_name(url: &str, signals: &mut Signals) {
    const PROGRAMS: [&str; 10] = ["exe", "msi", "dmg", "apk", "jar", "pkg", "deb", "rpm", "iso", "appimage"];
    const SCRIPTS: [&str; 15] = [
        "scr", "hta", "vbs", "vbe", "lnk", "pif", "wsf", "wsh", "cpl", "ps1", "bat", "cmd", "com", "jse",
        "reg",
    ];
    const DOCUMENTS: [&str; 11] =
        ["pdf", "doc", "docx", "xls", "xlsx", "txt", "jpg", "jpeg", "png", "zip", "csv"];
    let path = url.split(['?', '#']).next().unwrap_or_default();
    // Without a path there is no file: `example.com` is not a program.
    let Some((_, path)) = path.split_once("//").and_then(|(_, rest)| rest.split_once('/')) else { return };
    let Some((stem, extension)) = path.rsplit('/').next().unwrap_or_default().rsplit_once('.') else {
        return;
    };
    let one_of =
        |list: &[&str], extension: &str| list.iter().any(|known| known.eq_ignore_ascii_case(extension));
    let (program, script) = (one_of(&PROGRAMS, extension), one_of(&SCRIPTS, extension));
    signals.set_if(Detector::ExecutableLink, program);
    signals.set_if(Detector::ScriptFileLink, script);
    let disguised = stem.rsplit_once('.').is_some_and(|(_, inner)| one_of(&DOCUMENTS, inner));
    signals.set_if(Detector::DoubleExtension, (program || script) && disguised);
}

/// Schemes and media types of URLs whose code runs wherever they are loaded.
const ACTIVE: [&str; 5] =
    ["javascript:", "vbscript:", "data:text/html", "data:application/xhtml+xml", "data:text/xml"];

/// Returns `true` if following the URL runs code in it.
pub(super) fn is_active_link(url: &str) -> bool {
    // A picture is opened as a document then, whose scripts run.
    is_active_source(url) || starts_with_any(url, &["data:image/svg+xml"])
}

/// Returns `true` if loading the URL as a part of a page runs code in it.
pub(super) fn is_active_source(url: &str) -> bool {
    starts_with_any(url, &ACTIVE)
}

/// Compares a URL's start as browsers read it: they ignore control characters before it, and tabs and line ends
/// inside (URL standard, section 4.4).
fn starts_with_any(url: &str, starts: &[&str]) -> bool {
    let skipped = url.trim_start_matches(|c: char| c <= ' ');
    let start: String = skipped.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).take(40).collect();
    let start = start.to_ascii_lowercase();
    starts.iter().any(|known| start.starts_with(known))
}

/// Maximum length of an inspected URL, in bytes. Keeps the cost of nested URLs linear.
const MAX_ADDRESS: usize = 512;

/// The http and https addresses in a text.
fn addresses(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    memchr::memchr_iter(b':', bytes).filter(|at| bytes[at + 1..].starts_with(b"//")).filter_map(move |at| {
        let letters = bytes[..at].iter().rev().take(6).take_while(|b| b.is_ascii_alphabetic()).count();
        let scheme = &text[at - letters..at];
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return None;
        }
        let address = &text[at - letters..boundary(text, at + MAX_ADDRESS)];
        let end = address.bytes().position(ends_address).unwrap_or(address.len());
        Some(address[..end].trim_end_matches(['.', ',', ';']))
    })
}

/// Returns `true` for ASCII white space and characters that end a URL.
fn ends_address(byte: u8) -> bool {
    byte <= b' '
        || matches!(
            byte,
            b'<' | b'>' | b'"' | b'\'' | b'`' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'|' | b'\\' | b'^'
        )
}

/// Returns the text between `//` and the path.
fn authority(url: &str) -> Option<&str> {
    let url = url.trim_start_matches(|c: char| c <= ' ');
    let rest = match url.split_once("//") {
        Some(("", rest)) => rest,
        Some((scheme, rest))
            if scheme.eq_ignore_ascii_case("http:") || scheme.eq_ignore_ascii_case("https:") =>
        {
            rest
        }
        _ => return None,
    };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|authority| !authority.is_empty())
}

fn host_of(authority: &str) -> &str {
    let host = authority.rsplit('@').next().unwrap_or(authority);
    if host.starts_with('[') {
        return host.split_inclusive(']').next().unwrap_or(host);
    }
    host.split(':').next().unwrap_or(host).trim_end_matches('.')
}

fn host(url: &str) -> Option<&str> {
    authority(url).map(host_of)
}

fn is_address(host: &str) -> bool {
    // A single number is an address as well, in an obsolete notation.
    host.starts_with('[') || host.bytes().all(|b| b.is_ascii_digit() || b == b'.') && !host.is_empty()
}

/// Returns the host in a link's visible text, if it shows one.
fn shown_host(text: &str) -> Option<&str> {
    if let Some(address) = addresses(text).next() {
        return host(address).filter(|host| host.contains('.'));
    }
    if text.contains(char::is_whitespace) {
        return None;
    }
    let shown = text.split(['/', '?', '#', ':']).next()?;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    let is_name = shown.bytes().all(plain) && !shown.starts_with('.');
    // A bare name counts only with a top-level domain that names no products or files, unlike Node.js or
    // ASP.NET.
    const DOMAINS: [&str; 14] =
        ["com", "org", "edu", "gov", "mil", "bank", "de", "fr", "uk", "ru", "cn", "jp", "br", "eu"];
    let (name, top) = shown.rsplit_once('.')?;
    (is_name && !name.is_empty() && (DOMAINS.contains(&top) || shown.starts_with("www."))).then_some(shown)
}

/// Returns `true` if two hosts share a registrable domain, as far as that is known without a full list.
fn same_site(a: &str, b: &str) -> bool {
    site(a).eq_ignore_ascii_case(site(b))
}

/// Returns the last two labels of a host; three under a domain like `co.uk`.
fn site(host: &str) -> &str {
    let dots: Vec<usize> = memchr::memrchr_iter(b'.', host.as_bytes()).take(3).collect();
    let second_level = |last: usize, before: usize| host.len() - last - 1 == 2 && last - before - 1 <= 3;
    match dots[..] {
        [last, before, third] if second_level(last, before) => &host[third + 1..],
        [last, before] if second_level(last, before) => host,
        [_, before, ..] => &host[before + 1..],
        _ => host,
    }
}

/// Returns `true` if a label mixes Latin with look-alike letters, or has only such letters before an ASCII
/// top-level domain.
fn imitates_latin(host: &str) -> bool {
    let ascii_top = host.rsplit('.').next().is_some_and(|top| top.is_ascii() && !top.starts_with("xn--"));
    host.split('.').any(|label| {
        let label = decoded_label(label);
        let foreign = label.chars().filter(|c| is_foreign(*c)).count();
        let latin = label.chars().any(|c| c.is_alphabetic() && matches!(c, '\0'..='\u{24f}'));
        let imitating = label.chars().filter(|c| LOOK_ALIKES.contains(*c)).count();
        let letters = label.chars().filter(|c| c.is_alphabetic()).count();
        foreign > 0 && latin || imitating >= 3 && imitating == letters && ascii_top
    })
}

/// Cyrillic and Greek letters that look like Latin letters.
const LOOK_ALIKES: &str = "асеһіјӏорѕхуԁԛԝьвнкмтгαορνικτυχω";

/// Returns `true` for scripts with look-alikes of Latin letters: Greek, Cyrillic, Armenian, Cherokee.
fn is_foreign(c: char) -> bool {
    matches!(c, '\u{370}'..='\u{52f}' | '\u{530}'..='\u{58f}' | '\u{13a0}'..='\u{13ff}')
}

fn decoded_label(label: &str) -> String {
    let code = label.get(..4).filter(|start| start.eq_ignore_ascii_case("xn--")).map(|_| &label[4..]);
    // Punycode decoding is quadratic; no label in use exceeds 63 bytes (RFC 1035).
    code.filter(|code| code.len() <= 63)
        .and_then(idna::punycode::decode_to_string)
        .unwrap_or_else(|| label.chars().take(63).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(href: &str, text: &str) -> Vec<Detector> {
        let mut signals = Signals::default();
        let link = HtmlLink { href: href.into(), text: text.into() };
        inspect_link(&link, Some("https://blog.example.org/post"), &mut signals);
        Detector::ALL.iter().map(|(detector, _)| *detector).filter(|d| signals.has(*d)).collect()
    }

    #[test]
    fn links_that_show_another_site_are_found() {
        use Detector::MismatchedLink;
        for text in
            ["https://bank.example.com/login", "www.bank.com", "bank.com", "Log in at https://bank.com now"]
        {
            assert_eq!(found("https://evil.example/x", text), [MismatchedLink], "{text}");
        }
        assert_eq!(found("/relative", "https://bank.com"), [MismatchedLink], "it stays on the blog");
        assert_eq!(found("https://evil.co.uk/", "https://bank.co.uk"), [MismatchedLink]);
    }

    #[test]
    fn honest_links_are_left_alone() {
        for (href, text) in [
            ("https://www.example.com/a?b", "https://example.com/a…"),
            ("https://docs.example.co.uk/", "example.co.uk"),
            ("https://nodejs.org", "Node.js"),
            ("https://dotnet.microsoft.com", "ASP.NET"),
            ("https://github.com/x/y/blob/main.rs", "main.rs"),
            ("https://evil.example/", "click here"),
            ("http://user@example.com/", "x"),
            ("https://example.com", "x"),
        ] {
            assert_eq!(found(href, text), [], "{href} {text}");
        }
    }

    #[test]
    fn hosts_that_imitate_are_found() {
        use Detector::*;
        assert_eq!(found("https://xn--pple-43d.com/", "x"), [HomographHost, PunycodeHost]);
        assert_eq!(found("https://раураl.com/", "x"), [HomographHost, PunycodeHost]);
        assert_eq!(found("https://xn--80ak6aa92e.com/", "x"), [HomographHost, PunycodeHost]);
        assert_eq!(found("https://xn--bcher-kva.example/", "x"), [PunycodeHost]);
        assert_eq!(found("https://пример.рф/", "x"), [PunycodeHost]);
        assert_eq!(found("https://bank.com@evil.example/", "x"), [UserinfoUrl]);
        assert_eq!(found("http://192.0.2.7/a", "x"), [AddressHost]);
        assert_eq!(found("http://[2001:db8::1]:8080/a", "x"), [AddressHost]);
    }

    #[test]
    fn files_that_run_are_found() {
        use Detector::*;
        assert_eq!(found("https://a.example/setup.EXE?x=1", "x"), [ExecutableLink]);
        assert_eq!(found("https://a.example/b/invoice.pdf.exe", "x"), [ExecutableLink, DoubleExtension]);
        assert_eq!(found("https://a.example/c.hta", "x"), [ScriptFileLink]);
        assert_eq!(found("https://example.com", "x"), []);
    }

    #[test]
    fn addresses_that_run_code_are_found() {
        for url in ["javascript:alert(1)", " \u{1}JaVa\tScript:x", "vbscript:x", "data:text/html;base64,x"] {
            assert!(is_active_source(url), "{url}");
        }
        assert!(is_active_link("data:image/svg+xml,<svg onload=x>"));
        assert!(!is_active_source("data:image/svg+xml,<svg/>"));
        assert!(!is_active_link("https://a.example/javascript:x"));
        assert!(!is_active_link("data:image/png;base64,x"));
    }

    #[test]
    fn addresses_in_text_are_found() {
        let all: Vec<&str> =
            addresses("see http://a.example/x, (https://b.example). HTTPS://c; xhttp://d ftp://e").collect();
        assert_eq!(all, ["http://a.example/x", "https://b.example", "HTTPS://c"]);
    }
}
