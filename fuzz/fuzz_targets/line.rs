//! Line format: a parsed change prints and parses to an equal change.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::line::Line;

fuzz_target!(|bytes: &[u8]| {
    let Ok(line) = Line::parse(bytes) else { return };
    let text = serde_json::to_vec(&line).expect("a line can be printed");
    assert_eq!(Line::parse(&text).expect("what is printed can be read"), line);
    let Ok(change) = line.into_change() else { return };
    let mut printed = Line::new(change.op, &change.item, change.patch.as_ref());
    printed.modified = change.modified;
    let text = serde_json::to_vec(&printed).expect("a line can be printed");
    let again = Line::parse(&text).expect("what is printed can be read");
    assert_eq!(again.into_change().expect("a change"), change);
});
