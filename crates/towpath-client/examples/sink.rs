//! Follows a feed into a sink of one's own: a JSON file with the titles of all items and the position.
//!
//! `cargo run -p towpath-client --example sink -- URL titles.json`

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use towpath_client::{Follow, Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::Op;

#[derive(Default, Serialize, Deserialize)]
struct Titles {
    titles: BTreeMap<String, Option<String>>,
    checkpoint: Option<Vec<u8>>,
}

struct TitleFile(PathBuf);

#[async_trait::async_trait]
impl Sink for TitleFile {
    async fn open(&mut self, _source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.read()?.checkpoint)
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let mut file = self.read()?;
        for event in batch.events.iter() {
            match event {
                SinkEvent::Reset(_) => file.titles.clear(),
                SinkEvent::Change(change) if change.op == Op::Delete => {
                    file.titles.remove(&change.item.id);
                }
                SinkEvent::Change(change) => {
                    file.titles.insert(change.item.id.clone(), change.item.title.clone());
                }
            }
        }
        file.checkpoint = batch.checkpoint.as_deref().map(Into::into).or(file.checkpoint);
        // Titles and position become visible together: a kill at any time leaves one state or the other.
        let draft = self.0.with_extension("tmp");
        let text = serde_json::to_vec(&file).map_err(|e| SinkError::refused(e.to_string()))?;
        std::fs::write(&draft, text)
            .and_then(|()| std::fs::File::open(&draft)?.sync_all())
            .and_then(|()| std::fs::rename(&draft, &self.0))
            .map_err(|e| SinkError::unavailable(format!("cannot write {}: {e}", self.0.display())))
    }
}

impl TitleFile {
    fn read(&self) -> Result<Titles, SinkError> {
        let failed = |e: String| SinkError::unavailable(format!("cannot read {}: {e}", self.0.display()));
        match std::fs::read(&self.0) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| failed(e.to_string())),
            // Only a file that is not there is empty: another error must not begin a copy anew.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Titles::default()),
            Err(e) => Err(failed(e.to_string())),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (url, path) = args.next().zip(args.next()).ok_or("usage: sink URL FILE")?;
    Follow::new(url).into_sink(TitleFile(path.into())).await?;
    Ok(())
}
