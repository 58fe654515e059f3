//! A reader of an event stream, which comes back as a browser's `EventSource` does: with the last id that it has.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest silence of a stream; the server sends a comment every 25 seconds.
const SILENCE: Duration = Duration::from_secs(40);
/// Wait until the next connection.
const PAUSE: Duration = Duration::from_millis(500);

/// Reads a feed's stream of lines for ever, and passes each event's data on.
pub fn follow(base: &str, feed: &str, mut deliver: impl FnMut(&str)) {
    let mut last_id = None;
    loop {
        // Errors end a connection, not the reader: machines fail all the time here.
        let _ = read_stream(base, feed, &mut last_id, &mut deliver);
        std::thread::sleep(PAUSE);
    }
}

fn read_stream(
    base: &str,
    feed: &str,
    last_id: &mut Option<String>,
    deliver: &mut impl FnMut(&str),
) -> std::io::Result<()> {
    let host = base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let position = last_id.as_ref().map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
    // HTTP/1.0: the body comes as it is, without chunks.
    let path = format!("/feeds/{feed}/events?as=line&since=time:0");
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n{position}\r\n").as_bytes())?;
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next().transpose()?.unwrap_or_default();
    if !status.contains(" 200 ") {
        return Ok(());
    }
    for line in lines.by_ref() {
        if line?.is_empty() {
            break;
        }
    }
    // HTML, section 9.2.6: an event that is cut off before its empty line is dropped, with its id.
    let (mut id, mut data) = (None::<String>, None::<String>);
    for line in lines {
        let line = line?;
        if line.is_empty() {
            if let Some(id) = id.take() {
                *last_id = Some(id);
            }
            if let Some(data) = data.take() {
                deliver(&data);
            }
        } else if let Some(value) = line.strip_prefix("id: ") {
            id = Some(value.to_owned());
        } else if let Some(value) = line.strip_prefix("data: ") {
            data = Some(value.to_owned());
        }
    }
    Ok(())
}
