//! The table of pairs in `docs/interoperability.md`.

use std::path::Path;

/// Line after which the table begins, and the one before which it ends.
const MARKS: [&str; 2] = ["<!-- pairs -->", "<!-- end of pairs -->"];

/// Row of the table: protocol of the mirror, and numbers of items that followers find equal there.
pub(crate) type Row<'a> = (&'a str, Vec<usize>);

/// Asserts that the document has this table, or writes it where `TOWPATH_WRITE_TABLES` says so.
pub(crate) fn assert_written(followers: &[&str], rows: &[Row<'_>], items: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/interoperability.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(MARKS[0]).expect("the document has a mark before the table");
    let (written, after) = rest.split_once(MARKS[1]).expect("the document has a mark after the table");
    let table = table(followers, rows, items);
    if std::env::var_os("TOWPATH_WRITE_TABLES").is_some() {
        std::fs::write(&path, format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1])).unwrap();
    } else {
        assert_eq!(written, table, "TOWPATH_WRITE_TABLES=1 rewrites the table");
    }
}

fn table(followers: &[&str], rows: &[Row<'_>], items: usize) -> String {
    let mut table = format!("\n\n| mirrored by | {} |\n|---|", followers.join(" | "));
    table.push_str(&"---|".repeat(followers.len()));
    for (name, same) in rows {
        let cells: Vec<String> = same.iter().map(|same| format!("{same} of {items}")).collect();
        table.push_str(&format!("\n| {name} | {} |", cells.join(" | ")));
    }
    table + "\n\n"
}
