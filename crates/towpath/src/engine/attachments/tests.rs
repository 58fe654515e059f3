use std::sync::Arc;

use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use towpath_proto::NewChange;
use towpath_store::memory::MemoryStore;
use towpath_store::{Expected, Table};

use super::chunks::CHUNK;
use super::*;
use crate::config::Config;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(Timestamp::now)))
}

/// Removes all files of the item `a`, which was never appended.
async fn forget_all(store: &Arc<dyn Store>) {
    let config = Config::parse("", std::path::Path::new("")).unwrap();
    let engine = Engine::open(config, store.clone()).await.unwrap().0;
    forget(&engine, &feed(), &["a".into()]).await.unwrap();
}

fn feed() -> FeedId {
    FeedId::new("films").unwrap()
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|n| (n / 7 % 251) as u8).collect::<Vec<u8>>().into()
}

fn upload(id: &str) -> Upload {
    Upload::new(&feed(), id, "a.mp4".into(), "video/mp4".into(), NOW)
}

async fn write(store: &dyn Store, upload: &mut Upload, part: &[u8]) {
    let mut writer = UploadWriter::open(store, upload, ByteCounting::AtOnce).await.unwrap();
    for piece in part.chunks(100_003) {
        writer.push(Bytes::copy_from_slice(piece), NOW).await.unwrap();
    }
    writer.end(NOW).await.unwrap();
}

async fn rows(store: &dyn Store) -> usize {
    let documents = store.scan(Table::Documents, b"attachment", None, 10_000).await.unwrap().len();
    documents + store.scan(Table::Chains, b"uploads/", None, 10_000).await.unwrap().len()
}

async fn chunked(store: &dyn Store, key: &str) -> ChunkedFile {
    match load(store, &feed(), key).await.unwrap() {
        Some(KeptFile::Chunked(file)) => file,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_is_the_bytes_of_its_parts_wherever_they_were_cut() {
    let store = store();
    let whole = bytes(9 * CHUNK + 5);
    for cuts in [&[][..], &[1], &[CHUNK, CHUNK + 1], &[CHUNK - 1, 3 * CHUNK, 8 * CHUNK + 7], &[0, 0]] {
        let mut one = upload("a");
        one.save(store.as_ref()).await.unwrap();
        let mut from = 0;
        for cut in cuts.iter().copied().chain([whole.len()]) {
            // As another process would go on.
            one = Upload::load(store.as_ref(), &feed(), &one.id).await.unwrap().unwrap();
            assert_eq!(one.row.offset, from as u64);
            write(store.as_ref(), &mut one, &whole[from..cut]).await;
            from = cut;
        }
        let file = one.keep(store.as_ref()).await.unwrap();
        assert_eq!(file.sha256(), hex::encode(Sha256::digest(&whole)), "{cuts:?}");
        let kept = chunked(store.as_ref(), &file.key).await;
        for (first, end) in
            [(0, whole.len()), (CHUNK - 1, CHUNK + 1), (CHUNK, 3 * CHUNK), (whole.len() - 1, whole.len())]
        {
            let parts = kept.clone().stream(store.clone(), feed(), first as u64, end as u64);
            let parts: Vec<Bytes> = parts.try_collect().await.unwrap();
            assert!(parts.concat() == whole[first..end], "{cuts:?}: {first} to {end}");
        }
        one.finish(store.as_ref()).await.unwrap();
        forget_all(&store).await;
        assert_eq!(rows(store.as_ref()).await, 0, "{cuts:?}");
    }
}

#[tokio::test]
async fn of_two_writers_at_once_one_fails() {
    let store = store();
    for counting in [ByteCounting::AtOnce, ByteCounting::AtEnd] {
        let mut first = upload("a");
        first.save(store.as_ref()).await.unwrap();
        let mut second = first.clone();
        let mut writer = UploadWriter::open(store.as_ref(), &mut first, counting).await.unwrap();
        let opened = UploadWriter::open(store.as_ref(), &mut second, counting).await;
        if counting == ByteCounting::AtOnce {
            let mut other = opened.unwrap();
            other.push(bytes(10), NOW).await.unwrap();
            other.end(NOW).await.unwrap();
            writer.push(bytes(5), NOW).await.unwrap();
            assert!(writer.end(NOW).await.unwrap_err().is_conflict());
        } else {
            assert!(opened.is_err_and(|e| e.is_conflict()));
        }
    }
}

#[tokio::test]
async fn held_bytes_that_are_wrong_leave_what_was_there() {
    let store = store();
    let mut one = upload("a");
    one.save(store.as_ref()).await.unwrap();
    write(store.as_ref(), &mut one, b"good").await;
    let mut writer = UploadWriter::open(store.as_ref(), &mut one, ByteCounting::AtEnd).await.unwrap();
    writer.push(bytes(20 * CHUNK), NOW).await.unwrap();
    drop(writer);
    let mut one = Upload::load(store.as_ref(), &feed(), &one.id).await.unwrap().unwrap();
    assert_eq!(one.row.offset, 4);
    write(store.as_ref(), &mut one, b" end").await;
    let file = one.keep(store.as_ref()).await.unwrap();
    assert_eq!(file.sha256(), hex::encode(Sha256::digest("good end")));
    assert!(matches!(
        load(store.as_ref(), &feed(), &file.key).await.unwrap(),
        Some(KeptFile::Whole(content)) if content.bytes == "good end"
    ));
}

/// Also a file that an item has already takes no room twice, and an upload that is removed leaves nothing.
#[tokio::test]
async fn nothing_is_left_of_uploads_that_end() {
    let store = store();
    let mut first = upload("a");
    let mut again = upload("a");
    for one in [&mut first, &mut again] {
        one.save(store.as_ref()).await.unwrap();
        write(store.as_ref(), one, &bytes(3 * CHUNK)).await;
    }
    let file = first.keep(store.as_ref()).await.unwrap();
    first.finish(store.as_ref()).await.unwrap();
    let count = rows(store.as_ref()).await;
    assert_eq!(again.keep(store.as_ref()).await.unwrap(), file);
    again.discard(store.as_ref()).await.unwrap();
    // Three chunks and the row of the second upload.
    assert_eq!(rows(store.as_ref()).await, count - 4);
    assert_eq!(chunked(store.as_ref(), &file.key).await.size, 3 * CHUNK as u64);
    let mut broken = upload("b");
    broken.save(store.as_ref()).await.unwrap();
    write(store.as_ref(), &mut broken, &bytes(2 * CHUNK + 1)).await;
    broken.remove(store.as_ref()).await.unwrap();
    forget_all(&store).await;
    assert_eq!(rows(store.as_ref()).await, 0);
}

#[tokio::test]
async fn files_of_earlier_versions_are_read() {
    let store = store();
    let file = Attachment::new("a", "a.txt".into(), b"text");
    store.write(keep(&feed(), &file, "text/plain", b"text"), Vec::new()).await.unwrap();
    let read = load(store.as_ref(), &feed(), &file.key).await.unwrap();
    assert!(matches!(read, Some(KeptFile::Whole(content)) if content == Content::new("text/plain", "text")));
    forget_all(&store).await;
    assert_eq!(rows(store.as_ref()).await, 0);
}

#[test]
fn a_file_is_content_only_of_its_own_item() {
    let base = "https://a.example";
    let file = Attachment::new("a", "x y".into(), b"text");
    let with = |member: Value| {
        let mut item = Item::new("a");
        item.extra.insert("attachments".into(), json!([member]));
        content_key(&item, &feed())
    };
    let url = format!("{base}{}", file.path(&feed()));
    let good = json!({ "url": url, "size": 4, "sha256": file.sha256() });
    assert_eq!(with(good.clone()).as_ref(), Some(&file.key));
    let mut titled = good.clone();
    titled["title"] = "x y".into();
    let mut foreign = good.clone();
    foreign["url"] = url.replace("/films/", "/books/").into();
    let mut other = good;
    other["url"] = format!("{base}{}", Attachment::new("b", "x".into(), b"text").path(&feed())).into();
    for member in [titled, foreign, other, json!({ "url": url }), json!(1)] {
        assert_eq!(with(member.clone()), None, "{member}");
    }
}

/// A feed with a file in one row, one in chunks, and an upload that goes on.
async fn with_files() -> Arc<dyn Store> {
    let store = store();
    let mut film = upload("film");
    film.save(store.as_ref()).await.unwrap();
    write(store.as_ref(), &mut film, &bytes(2 * CHUNK + 5)).await;
    film.keep(store.as_ref()).await.unwrap();
    film.forget(store.as_ref()).await.unwrap();
    let mut half = upload("half");
    half.row.resumable = Some(Resumable { title: None, metadata: String::new() });
    half.save(store.as_ref()).await.unwrap();
    write(store.as_ref(), &mut half, &bytes(CHUNK + 5)).await;
    let page = Attachment::new("page", "page.pdf".into(), b"PDF");
    store.write(keep(&feed(), &page, "application/pdf", b"PDF"), Vec::new()).await.unwrap();
    let items = ["film", "page"].map(|id| NewChange::put(Item::new(id)));
    store.append(&feed(), Expected::Any, items.into()).await.unwrap();
    store
}

#[tokio::test]
async fn every_row_of_a_file_is_checked_and_repaired() {
    let store = with_files().await;
    assert_eq!(verify(store.as_ref()).await.unwrap().0, []);
    assert_eq!(repair(store.as_ref()).await.unwrap(), [""; 0]);
    let mut damages = 0;
    for table in [Table::Documents, Table::Chains] {
        for (key, _) in store.scan(table, b"", None, 100).await.unwrap() {
            let name = String::from_utf8_lossy(&key).into_owned();
            for value in [None, Some(Bytes::from_static(b"{"))] {
                // The name may be any, and without its row an upload has ended.
                let is_name = name.starts_with("attachment-names/") && value.is_some();
                if is_name || (name.starts_with("uploads/") && value.is_none()) {
                    continue;
                }
                let store = with_files().await;
                // The ids of the uploads are others, and their order is.
                let rows = store.scan(table, b"", None, 100).await.unwrap();
                let same = |(other, _): &&(Bytes, Bytes)| kind(other) == kind(&key);
                let key = rows.iter().find(same).unwrap().0.to_vec();
                store.write(vec![TableWrite { table, key, value }], Vec::new()).await.unwrap();
                let found = verify(store.as_ref()).await.unwrap().0;
                assert_eq!(found.len(), 1, "{name}: {found:?}");
                repair(store.as_ref()).await.unwrap();
                assert_eq!(verify(store.as_ref()).await.unwrap().0, [], "{name}");
                damages += 1;
            }
        }
    }
    assert_eq!(damages, 2 * (2 + 3 + 2) + 2 + 1);
}

/// A file whose record and name are both gone is found by its chunks, and restored where its item names it.
#[tokio::test]
async fn chunks_that_nothing_names_are_found() {
    for (is_named, rows) in [(true, 3 + 2), (false, 0)] {
        let store = store();
        let mut film = upload("film");
        film.save(store.as_ref()).await.unwrap();
        write(store.as_ref(), &mut film, &bytes(2 * CHUNK + 5)).await;
        let file = film.keep(store.as_ref()).await.unwrap();
        film.forget(store.as_ref()).await.unwrap();
        let mut item = Item::new("film");
        if is_named {
            let url = format!("https://a.example{}", file.path(&feed()));
            let attachment = json!([{"url": url, "media_type": "video/mp4", "sha256": file.sha256()}]);
            item.extra.insert("attachments".into(), attachment);
        }
        store.append(&feed(), Expected::Any, vec![NewChange::put(item)]).await.unwrap();
        assert_eq!(verify(store.as_ref()).await.unwrap().0, []);
        let gone = |key| TableWrite { table: Table::Documents, key, value: None };
        let damage = vec![gone(bytes_row(&feed(), &file.key)), gone(name_row(&feed(), &file.key))];
        store.write(damage, Vec::new()).await.unwrap();
        let found = verify(store.as_ref()).await.unwrap().0;
        assert!(found.len() == 1 && found[0].problem == "its record is missing", "{found:?}");
        let place =
            if is_named { "file \"a.mp4\" of item \"film\"" } else { "1048581 bytes of an unknown file" };
        assert!(found[0].place.starts_with(place), "{found:?}");
        let lost = repair(store.as_ref()).await.unwrap();
        assert_eq!(lost.len(), usize::from(!is_named), "{lost:?}");
        assert_eq!(verify(store.as_ref()).await.unwrap().0, []);
        assert_eq!(self::rows(store.as_ref()).await, rows);
        if is_named {
            let kept = chunked(store.as_ref(), &file.key).await;
            assert_eq!((kept.size, kept.media_type.as_str()), (2 * CHUNK as u64 + 5, "video/mp4"));
            assert_eq!(list(store.as_ref(), &feed()).await.unwrap(), [file]);
        }
    }
}

/// Returns the key of a row without the random id of its upload.
fn kind(key: &[u8]) -> String {
    let name = String::from_utf8_lossy(key).into_owned();
    let parts: Vec<&str> = name.split('/').filter(|part| part.len() != 32).collect();
    parts.join("/")
}
