//! The conformance suite for every kind of this crate that needs no server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use towpath_client::Sink;
use towpath_client::sink::SinkStateFile;
use towpath_proto::follow::Followed;
use towpath_proto::line::{Line, ResetLine};
use towpath_proto::{Content, Item, NewChange, Op, patch};
use towpath_sinks::conformance::{HistoryEntry, LiveItems, SinkFixture};
use towpath_sinks::{Destination, conformance_tests, open, open_with_state};

fn poisoned() -> Followed {
    let (feed, position) = ("f".into(), "p2".into());
    Followed {
        feed,
        op: Op::Put,
        item: Item::new("poison"),
        patch: None,
        modified: None,
        position,
        entry_id: None,
    }
}

mod sqlite {
    use rusqlite::{Connection, Row};

    use super::*;

    struct SqliteFixture {
        folder: TempDir,
        /// Another program that holds the database's lock.
        locker: Option<Connection>,
    }

    impl SqliteFixture {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap(), locker: None }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("copy.db")
        }

        fn connect(&self) -> Connection {
            Connection::open(self.path()).unwrap()
        }
    }

    fn item(row: &Row<'_>) -> rusqlite::Result<((String, String), Item)> {
        let text = |column: &str| row.get::<_, Option<String>>(column);
        let time = |column: &str| text(column).map(|text| text.map(|text| text.parse().unwrap()));
        let content = match row.get_ref("content")? {
            rusqlite::types::ValueRef::Text(bytes) | rusqlite::types::ValueRef::Blob(bytes) => {
                Some(Content::new(text("content_type")?.unwrap(), bytes.to_vec()))
            }
            _ => None,
        };
        let id: String = row.get("id")?;
        let item = Item {
            id: id.clone(),
            url: text("url")?,
            title: text("title")?,
            summary: text("summary")?,
            content,
            authors: serde_json::from_str(&row.get::<_, String>("authors")?).unwrap(),
            tags: serde_json::from_str(&row.get::<_, String>("tags")?).unwrap(),
            published: time("published")?,
            updated: time("updated")?,
            extra: serde_json::from_str(&row.get::<_, String>("extra")?).unwrap(),
        };
        Ok(((row.get("feed")?, id), item))
    }

    #[async_trait]
    impl SinkFixture for SqliteFixture {
        async fn sink(&mut self) -> Box<dyn Sink> {
            let destination: Destination = format!("sqlite:{}", self.path().display()).parse().unwrap();
            open(&destination)
        }

        async fn items(&mut self) -> LiveItems {
            let connection = self.connect();
            let mut statement = connection.prepare("SELECT * FROM items").unwrap();
            statement.query_map([], item).unwrap().collect::<Result<_, _>>().unwrap()
        }

        async fn history(&mut self) -> Option<Vec<HistoryEntry>> {
            let connection = self.connect();
            let select = "SELECT feed, op, coalesce(id, ''), coalesce(position, '') FROM changes ORDER BY n";
            let mut statement = connection.prepare(select).unwrap();
            let entries =
                statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
            Some(entries.unwrap().collect::<Result<_, _>>().unwrap())
        }

        async fn set_available(&mut self, is_available: bool) -> bool {
            self.locker = (!is_available).then(|| {
                let locker = self.connect();
                locker.execute_batch("BEGIN IMMEDIATE").unwrap();
                locker
            });
            true
        }

        fn poison(&self) -> Option<Followed> {
            let trigger = "CREATE TRIGGER mine BEFORE INSERT ON items WHEN new.id = 'poison'
                           BEGIN SELECT raise(ABORT, 'no poison here'); END";
            // A rule of the user's own. The tables are there once a sink was opened.
            let destination: Destination = format!("sqlite:{}", self.path().display()).parse().unwrap();
            let mut sink = open(&destination);
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async { sink.open("s").await.map(drop) }).unwrap();
            });
            self.connect().execute_batch(trigger).unwrap();
            Some(poisoned())
        }

        async fn refused(&mut self) -> usize {
            let count =
                "SELECT count(*) FROM refused WHERE reason LIKE '%no poison here%' AND change IS NOT NULL";
            self.connect().query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() as usize
        }
    }

    conformance_tests!(SqliteFixture::new());
}

mod folder {
    use super::*;

    struct FolderFixture(TempDir);

    impl FolderFixture {
        fn destination(&self) -> Destination {
            format!("dir:{}", self.0.path().join("copy").display()).parse().unwrap()
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            std::fs::read_dir(folder).into_iter().flatten().map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }

    #[async_trait]
    impl SinkFixture for FolderFixture {
        async fn sink(&mut self) -> Box<dyn Sink> {
            open(&self.destination())
        }

        async fn items(&mut self) -> LiveItems {
            let mut items = LiveItems::new();
            for feed in
                files(&self.0.path().join("copy")).into_iter().filter(|path| !path.ends_with(".towpath"))
            {
                for file in files(&feed)
                    .into_iter()
                    .filter(|path| path.is_file() && path.extension().is_some_and(|e| e == "json"))
                {
                    let line = Line::parse(&std::fs::read(&file).unwrap()).unwrap();
                    let name = line.feed.clone().unwrap();
                    let item = line.into_change().unwrap().item;
                    // The index leads from the id to the file.
                    let index = std::fs::read_to_string(feed.join("index.ndjson")).unwrap();
                    let mut last =
                        index.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
                    let last = last.rfind(|line| line["id"] == item.id.as_str()).unwrap();
                    assert_eq!(last["file"], file.file_name().unwrap().to_str().unwrap());
                    assert_eq!(items.insert((name, item.id.clone()), item), None, "two files of one item");
                }
            }
            items
        }

        fn poison(&self) -> Option<Followed> {
            std::fs::create_dir_all(self.0.path().join("copy/.towpath")).unwrap();
            std::fs::create_dir_all(self.0.path().join("copy/f/poison.json")).unwrap();
            Some(poisoned())
        }

        async fn refused(&mut self) -> usize {
            // The folder in its way is not an item.
            std::fs::read_to_string(self.0.path().join("copy/.towpath/refused.ndjson"))
                .unwrap()
                .lines()
                .count()
        }
    }

    conformance_tests!(FolderFixture(tempfile::tempdir().unwrap()));
}

mod exec {
    use super::*;

    /// A program that keeps all lines, and acknowledges each by writing it back.
    struct ExecFixture(TempDir);

    #[async_trait]
    impl SinkFixture for ExecFixture {
        async fn sink(&mut self) -> Box<dyn Sink> {
            let command = format!("exec:exec tee -a '{}'", self.0.path().join("lines").display());
            let state = self.0.path().join("state");
            // The process before has the state file until it has ended.
            while SinkStateFile::open("exec", &state).is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            open_with_state(&command.parse().unwrap(), Some(&state)).unwrap()
        }

        async fn items(&mut self) -> LiveItems {
            let mut items = LiveItems::new();
            let text = std::fs::read(self.0.path().join("lines")).unwrap_or_default();
            for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                if ResetLine::is(line) {
                    let reset: ResetLine = serde_json::from_slice(line).unwrap();
                    items.retain(|(feed, _), _| *feed != reset.feed);
                    continue;
                }
                // A kill may cut the last line of a run off; the line comes again.
                let Ok(line) = Line::parse(line) else { continue };
                let feed = line.feed.clone().unwrap();
                let NewChange { op, item, patch, .. } = line.into_change().unwrap();
                let key = (feed, item.id.clone());
                match op {
                    Op::Put => drop(items.insert(key, item)),
                    Op::Delete => drop(items.remove(&key)),
                    Op::Patch => {
                        let patched = patch::apply(&items[&key], &patch.unwrap()).unwrap();
                        items.insert(key, patched);
                    }
                }
            }
            items
        }
    }

    conformance_tests!(ExecFixture(tempfile::tempdir().unwrap()));
}
