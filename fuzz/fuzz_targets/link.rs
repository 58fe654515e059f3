//! Link headers: parsing terminates for any text, and parsed links survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::format::link;

fuzz_target!(|text: &str| {
    let base = "https://a.example/b/c?d".parse().expect("an address");
    for found in link::parse(text, Some(&base)) {
        let Some(rel) = found.rels.first().filter(|_| found.target.starts_with("https://")) else { continue };
        // Other relations need quotes, or are not valid in a header.
        let token = rel.bytes().all(|b| b.is_ascii_graphic() && !b";,\"\\=".contains(&b));
        if !token || found.target.contains('>') {
            continue;
        }
        let again = link::parse(&link::write(&found.target, rel), Some(&base));
        assert_eq!(link::target(&again, rel), Some(found.target.as_str()));
    }
});
