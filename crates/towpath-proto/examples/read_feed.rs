//! Reads a feed document from standard input and prints its items as the lines that `towpath import` takes.
//!
//! ```console
//! $ cargo run -p towpath-proto --example read_feed < examples/news.atom
//! ```

use std::io::{Read, Write};

use towpath_proto::Op;
use towpath_proto::format::{ReadOptions, read};
use towpath_proto::line::Line;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    let feed = read(&bytes, &ReadOptions::default())?;
    let mut out = std::io::stdout().lock();
    for item in &feed.items {
        serde_json::to_writer(&mut out, &Line::new(Op::Put, item, None))?;
        out.write_all(b"\n")?;
    }
    // Malformed parts are skipped, never silently.
    for problem in &feed.problems {
        eprintln!("{problem}");
    }
    Ok(())
}
