use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;

fn document(path: &str, body: &str, headers: &[(&'static str, &str)]) -> TreeDocument {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    TreeDocument { path: path.into(), body: Bytes::copy_from_slice(body.as_bytes()), headers: map }
}

fn page(number: u64, boundary: &str, links: &[(&str, u64)]) -> TreeDocument {
    let content_type = format!("multipart/mixed; boundary=\"{boundary}\"");
    let mut document = document(
        &format!("/feeds/kev/replication/pages/{number}"),
        boundary,
        &[
            ("content-type", &content_type),
            ("cache-control", "no-cache"),
            ("x-sup-id", "https://a.example/sup.json#ab"),
        ],
    );
    for (rel, number) in links {
        let line = link::write(&format!("https://a.example/feeds/kev/replication/pages/{number}"), rel);
        document.headers.append("link", HeaderValue::from_str(&line).unwrap());
    }
    document
}

fn files(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            match path.symlink_metadata().unwrap().is_dir() {
                true => open.push(path),
                false => files.push(path.strip_prefix(folder).unwrap().display().to_string()),
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_path_that_others_begin_with_is_an_index() {
    for (path, file) in [
        ("/feeds", "feeds/index"),
        ("/feeds/kev", "feeds/kev/index"),
        ("/feeds/kev/atom", "feeds/kev/atom/index"),
        ("/feeds/kev/atom/1-2", "feeds/kev/atom/1-2"),
        ("/feeds/kev/feed.json", "feeds/kev/feed.json/index"),
        ("/feeds/kev/replication", "feeds/kev/replication/index"),
        ("/feeds/kev/snapshots", "feeds/kev/snapshots/index"),
        ("/feeds/kev/snapshots/7", "feeds/kev/snapshots/7/index"),
        ("/feeds/kev/snapshots/latest", "feeds/kev/snapshots/latest"),
        ("/diff/kev/head.json", "diff/kev/head.json"),
        ("/sup.json", "sup.json"),
    ] {
        assert_eq!(file_of(path), file);
    }
}

#[tokio::test]
async fn a_page_is_a_link_to_a_name_that_says_its_headers() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path()).unwrap();
    folder.put(&page(2, "one", &[("self", 2), ("prev", 1)])).await.unwrap();
    let sealed = page(2, "two", &[("self", 2), ("prev", 1), ("next", 3)]);
    folder.put(&sealed).await.unwrap();
    let path = temporary.path().join("feeds/kev/replication/pages/2");
    let name = path.canonicalize().unwrap().file_name().unwrap().to_owned();
    assert_eq!(name.to_str(), Some(";b=two;c=0;o=2;p=1;n=3;s=ab;"));
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(
        files(temporary.path()).len(),
        2,
        "the link and what it leads to: {:?}",
        files(temporary.path())
    );
    assert_eq!(folder.read(&sealed.path).await.unwrap().as_deref(), Some(&b"two"[..]));
    folder.remove(&sealed.path).await.unwrap();
    assert_eq!(files(temporary.path()), [""; 0]);
    assert!(!temporary.path().join("feeds").exists(), "folders that are empty are gone, too");
}

#[tokio::test]
async fn versions_are_told_apart_by_the_second_and_compressed_where_that_helps() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path()).unwrap();
    let path = temporary.path().join("diff/kev/head.json");
    let json = [("content-type", "application/json")];
    let mut times = Vec::new();
    for body in ["1", "2", "3"] {
        folder.put(&document("/diff/kev/head.json", body, &json)).await.unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        times.push(modified.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs());
    }
    // Three versions within a second get three seconds, the later ones in the future.
    assert!(times[0] < times[1] && times[1] < times[2], "{times:?}");
    folder.put(&document("/diff/kev/head.json", &"4".repeat(5000), &json)).await.unwrap();
    let gz = temporary.path().join("diff/kev/head.json.gz");
    let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(time(&path), time(&gz));
    folder.put(&document("/diff/kev/head.json", "5", &json)).await.unwrap();
    assert!(!gz.exists(), "an old body is not served to those who want it compressed");
}

#[tokio::test]
async fn what_a_killed_export_was_writing_is_gone_with_the_next() {
    let temporary = tempfile::tempdir().unwrap();
    Folder::new(temporary.path()).unwrap();
    fs::write(temporary.path().join(OWN).join("tmp/0"), b"half").unwrap();
    let folder = Folder::new(temporary.path()).unwrap();
    folder.take_over().await.unwrap();
    assert_eq!(files(temporary.path()), [""; 0]);
    folder.put(&document("/sup.json", "{}", &[])).await.unwrap();
    folder.sync().await.unwrap();
    assert_eq!(files(temporary.path()), ["sup.json"]);
}

#[tokio::test]
async fn who_was_replaced_writes_nothing_any_more() {
    let temporary = tempfile::tempdir().unwrap();
    let (before, now) = (Folder::new(temporary.path()).unwrap(), Folder::new(temporary.path()).unwrap());
    let page = document("/sup.json", "{}", &[]);
    before.put(&page).await.unwrap();
    now.take_over().await.unwrap();
    before.put(&page).await.unwrap_err();
    now.put(&page).await.unwrap();
    // Until it takes over in turn.
    before.take_over().await.unwrap();
    before.put(&page).await.unwrap();
    now.put(&page).await.unwrap_err();
}

#[tokio::test]
async fn of_those_who_begin_a_tree_one_names_it() {
    let temporary = tempfile::tempdir().unwrap();
    let folders: Vec<Folder> = (0..8).map(|_| Folder::new(temporary.path()).unwrap()).collect();
    let names = folders.iter().map(|folder| crate::export::name_of(folder));
    let names = futures_util::future::join_all(names).await;
    let first = names[0].as_ref().unwrap();
    assert!(names.iter().all(|name| name.as_ref().unwrap() == first), "{names:?}");
}

/// Readers come to a dropped page by links of immutable documents, and a 404 would look like a fault.
#[test]
fn a_document_that_is_gone_leaves_a_mark() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    let mark = root.path().join(".towpath/gone/feeds/kev/atom/1.gone");
    let archive = document("/feeds/kev/atom/1", "one", &[]);
    folder.put_now(&archive).unwrap();
    assert!(!mark.exists());
    folder.remove_for_good_now(&archive.path).unwrap();
    assert!(mark.exists() && !root.path().join("feeds/kev/atom/1").exists());
    folder.remove_for_good_now(&archive.path).unwrap();
    folder.put_now(&archive).unwrap();
    assert!(!mark.exists(), "a feed that was begun anew has the page again");
}
