use std::time::Duration;

use towpath_proto::follow::ReadLimits;
use towpath_proto::format::DocumentLimits;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/etc/towpath/towpath.toml"))
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn documented_example() {
    let config = parse(
        r#"
        [server]
        listen = "127.0.0.1:8080"
        base_url = "http://127.0.0.1:8080/"
        data = "data"
        [[feed]]
        id = "kev"
        title = "Known exploited vulnerabilities"
        ttl = "5m"
        [feed.source]
        url = "known_exploited_vulnerabilities.json"
        format = "json"
        every = "15m"
        complete = true
        [feed.source.json]
        items = "/vulnerabilities"
        id = "/cveID"
        url = "https://nvd.nist.gov/vuln/detail/{/cveID}"
        [[feed]]
        id = "orders"
        [[feed]]
        id = "their_feed"
        [feed.source]
        follow = "https://example.com/feeds/x"
        "#,
    )
    .unwrap();
    assert_eq!(config.base_url(), "http://127.0.0.1:8080");
    assert_eq!(config.server.data, Path::new("/etc/towpath/data"));
    assert_eq!(config.feeds[0].ttl, Duration::from_secs(300));
    assert!(config.feeds[1].source.is_none());
}

/// Readers who poll as they are told must not be slower than the source.
#[test]
fn the_default_ttl_is_never_above_every() {
    let ttl = |text: &str| parse(&format!("[[feed]]\nid = \"aa\"\n{text}")).unwrap().feeds[0].ttl.as_secs();
    let source = |every: &str| format!("[feed.source]\nurl = \"a.xml\"\nevery = {every:?}\n");
    assert_eq!(ttl(""), 300);
    assert_eq!((ttl(&source("1m")), ttl(&source("1h"))), (60, 300));
    assert_eq!(ttl(&format!("ttl = \"10m\"\n{}", source("1m"))), 600, "what is configured holds");
}

#[test]
fn the_description_of_a_feed() {
    let feed = |text: &str| parse(&format!("[[feed]]\nid = \"aa\"\n{text}\n"));
    let described = "home = \"https://a.example/\"\ndescription = \"All\"\nimage = \"https://a.example/i.png\"\n\
        author = { name = \"Ann\", email = \"ann@a.example\" }\ntags = [\"security\"]";
    let config = feed(described).unwrap();
    assert_eq!(config.feeds[0].author.as_ref().unwrap().email.as_deref(), Some("ann@a.example"));
    assert_eq!(feed("author = \"Ann\"").unwrap().feeds[0].author.as_ref().unwrap().name, "Ann");
    for bad in ["home = \"/\"", "image = \"javascript:x\""] {
        assert!(feed(bad).unwrap_err().to_string().contains("http"), "{bad}");
    }
}

#[test]
fn hubs_of_others_are_public_urls() {
    let feed = |text: &str| parse(&format!("[[feed]]\nid = \"aa\"\n{text}\n"));
    assert!(feed("hubs = [\"https://hub.example/\", \"http://other.example/hub?x=1\"]").is_ok());
    for (bad, why) in [
        ("hubs = [\"hub.example\"]", "not an http or https URL"),
        ("hubs = [\"https://user:word@hub.example/\"]", "credentials"),
        ("hubs = [\"https://hub.example/\", \"https://hub.example/\"]", "twice"),
        ("hubs = [\"https://hub.example/\"]\nreaders = [\"t\"]", "must be public"),
    ] {
        let problem = feed(bad).unwrap_err().to_string();
        assert!(problem.contains(why) && !problem.contains("word"), "{bad}: {problem}");
    }
    assert!(feed("hubs = []\nreaders = [\"t\"]").is_ok());
    assert!(parse("[export]\nto = \"tree\"\nhubs = [\"/\"]").is_err());
}

#[test]
fn errors_name_the_place() {
    // A mistyped key must not be ignored silently.
    let unknown = error("[server]\nlisen = \"x\"\n");
    assert!(unknown.contains("line 2") && unknown.contains("lisen"), "{unknown}");
    let twice = error("[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"aa\"\n");
    assert!(twice.contains("\"aa\"") && twice.contains("number 2"), "{twice}");
    assert!(error("[[feed]]\nid = \"A B\"\n").contains("A B"));
    assert!(error("[[feed]]\nid = \"aa\"\nttl = \"soon\"\n").contains("\"soon\""));
    assert!(error("[[feed]]\nid = \"aa\"\n[feed.source]\n").contains("neither"));
    assert!(error("[server]\nbase_url = \"ftp://x\"\n").contains("ftp://x"));
    let credentials = error("[server]\nbase_url = \"http://me:secret@x\"\n");
    assert!(credentials.contains("has credentials") && !credentials.contains("secret"), "{credentials}");
    assert!(error("[server]\ntokens = [\"\"]\n").contains("empty token"));
    // A mistyped hash would be a token that anybody can read who sees the file.
    let mistyped = error("[server]\ntokens = [\"sha256:zz\"]\n");
    assert!(mistyped.contains("64 hexadecimal digits") && !mistyped.contains("zz"), "{mistyped}");
    assert!(mistyped.contains("line 2"), "{mistyped}");
    let mistyped = error("[[feed]]\nid = \"aa\"\nreaders = [\"one\", \"sha256:zz\"]\n");
    assert!(mistyped.contains("64 hexadecimal digits") && mistyped.contains("line 3"), "{mistyped}");
    assert!(error("[server\n").contains("line 1"));
    let json = "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\nformat = \"json\"\n";
    assert!(error(json).contains("[feed.source.json]"));
    let mapping = |text: &str| error(&format!("{json}[feed.source.json]\nitems = \"/v\"\n{text}\n"));
    let no_id = mapping("");
    assert!(no_id.contains("`id`") && no_id.contains("line 6"), "{no_id}");
    let unclosed = mapping("id = \"/i\"\nurl = \"https://x/{/y\"");
    assert!(unclosed.contains("source.json") && unclosed.contains("url has a {"), "{unclosed}");
}

#[test]
fn invalid_urls_are_named() {
    let source = |url: &str| format!("[[feed]]\nid = \"aa\"\n[feed.source]\n{url}\n");
    // Each of these would otherwise count as the path of a file.
    for bad in ["http://", "http:/host/x", "HTTP:host", "https:x", "http:///", "ftp://x/y"] {
        for key in ["url", "follow"] {
            let text = error(&source(&format!("{key} = {bad:?}")));
            assert!(text.contains(bad) && text.contains(key), "{bad}: {text}");
        }
    }
    for good in ["HTTP://host:80/x", "https://host", "data/a.json", "/data/http:/x", "file:///a"] {
        assert!(parse(&source(&format!("url = {good:?}"))).is_ok(), "{good}");
    }
}

#[test]
fn a_feed_that_is_followed_has_no_keys_of_one_that_is_polled() {
    let source =
        |text: &str| format!("[[feed]]\nid = \"aa\"\n[feed.source]\nfollow = \"http://host/x\"\n{text}\n");
    for key in [
        "timeout = \"5s\"",
        "format = \"rss\"",
        "complete = true",
        "guard = { min_items = 1 }",
        "json = { id = \"/id\" }",
    ] {
        let text = error(&source(key));
        let name = key.split(' ').next().unwrap();
        assert!(text.contains(&format!("source.{name} is for a source that is polled")), "{key}: {text}");
    }
    let meant = "every = \"1m\"\npush = true\nlarge_content = true\nenabled = false\nheaders = { Authorization = \"Bearer x\" }";
    let config = parse(&source(meant)).unwrap();
    let headers = config.feeds[0].source.as_ref().unwrap().header_map();
    assert_eq!(headers["authorization"], "Bearer x");
    let limited = parse(&source("max_mib = 1\nlimits = { items = 1, entity_mib = 2 }")).unwrap();
    let limits = limited.feeds[0].source.as_ref().unwrap().read_limits();
    assert_eq!((limits.max_document, limits.document.items, limits.max_entity), (Some(1 << 20), 1, 2 << 20));
    assert_eq!(config.feeds[0].source.as_ref().unwrap().read_limits(), ReadLimits::default());
    assert!(error(&source("headers = { \"a b\" = \"c\" }")).contains("cannot be sent"));
}

#[test]
fn a_polled_document_has_no_files_to_copy() {
    let text = error("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"http://host/x\"\nlarge_content = true\n");
    assert!(text.contains("source.large_content is for a source that is followed"), "{text}");
}

#[test]
fn limits_of_sources() {
    let source = |text: &str| {
        format!("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\n[feed.source.limits]\n{text}\n")
    };
    let config = parse(&source("items = 5\nstring_mib = 1")).unwrap();
    let limits: DocumentLimits = config.feeds[0].source.as_ref().unwrap().limits.into();
    let expected = DocumentLimits { items: 5, string: 1 << 20, ..DocumentLimits::default() };
    assert_eq!(limits, expected);
    for (bad, key) in [("items = 0", "items"), ("depth = 257", "depth"), ("memory_mib = 0", "memory_mib")] {
        assert!(error(&source(bad)).contains(&format!("source.limits.{key} is not between 1 and")), "{bad}");
    }
    assert!(error("[server]\nfetch_mib = 1\n").contains("fetch_mib"));
    assert!(error("[server]\nbody_mib = 63\n").contains("body_mib"));
    assert!(error("[server]\nprivate_fetches = \"some\"\n").contains("private_fetches"));
}

#[test]
fn languages() {
    let feed = |lang: &str| parse(&format!("[[feed]]\nid = \"aa\"\nlang = {lang:?}\n"));
    for tag in ["en", "en-US", "zh-Hant-TW", "x-klingon", "de-1996", "i-klingon"] {
        assert!(feed(tag).is_ok(), "{tag}");
    }
    for bad in ["", "<x>", "en_US", "e", "en-", "-en", "toolonglanguage", "en-\"", "1a", "en US"] {
        let text = feed(bad).unwrap_err().to_string();
        assert!(text.contains("lang") && text.contains("\"aa\""), "{bad}: {text}");
    }
}

#[test]
fn complete_feeds() {
    let config = parse("[[feed]]\nid = \"aa\"\ncomplete = true\n[[feed]]\nid = \"bb\"\n").unwrap();
    assert!(config.feeds[0].complete && !config.feeds[1].complete);
    let filter = "[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\ncomplete = true\nfilter = { of = \"aa\" }\n";
    assert!(error(filter).contains("\"bb\": complete: a feed with a filter"), "{}", error(filter));
    assert!(error("[[feed]]\nid = \"aa\"\ncomplete = \"yes\"\n").contains("line 3"));
}

#[test]
fn static_tree() {
    let config = parse("[export]\nto = \"tree\"\nbase_url = \"https://a.example/\"\n").unwrap();
    let export = config.export.unwrap();
    assert_eq!(
        (export.to.as_str(), export.base_url.as_deref()),
        ("/etc/towpath/tree", Some("https://a.example"))
    );
    assert_eq!(export.every, Duration::from_secs(10));
    let bucket = parse("[export]\nto = \"s3://b/p\"\nevery = \"1m\"\n").unwrap().export.unwrap();
    assert_eq!((bucket.to.as_str(), bucket.every), ("s3://b/p", Duration::from_secs(60)));
    for bad in
        ["[export]\nto = \"\"\n", "[export]\nto = \"x\"\nbase_url = \"x\"\n", "[export]\nevery = \"1s\"\n"]
    {
        assert!(error(bad).contains("export"), "{bad}");
    }
}

#[test]
fn types_are_named_in_plain_words() {
    for (text, words) in [
        ("[server]\nwaiters = 'many'", "string \"many\", expected a whole number, not below 0"),
        ("[server]\nthreads = -1", "integer `-1`, expected a whole number, not below 0"),
        ("[[feed]]\nid = 'aa'\npage_items = 0", "expected a whole number above 0"),
        ("[server]\ncreate_feeds = 1", "integer `1`, expected true or false"),
        ("[[feed]]\nid = 'aa'\ntitle = ['x']", "a list, expected a text"),
        ("[[feed]]\nid = 'aa'\ntags = 'x'", "string \"x\", expected a list"),
        ("[risk]\nrules = 5", "integer `5`, expected a path"),
        ("[alerts]\nfeed = true\nwebhook = 'nope'", "string \"nope\", expected a table"),
        ("[[feed]]\nid = 'aa'\nfilter = { of = 'bb', tags = 5 }", "integer `5`, expected a list in `tags`"),
    ] {
        let error = error(text);
        assert!(error.contains(words) && error.lines().count() == 1, "{text}: {error}");
    }
}

#[test]
fn all_wrong_values_of_a_list_are_told() {
    for (text, wrong) in [
        ("listen = ['localhost', ':80', '127.0.0.1:80']", ["\"localhost\"", "\":80\""]),
        ("trusted_proxies = ['300.0.0.1', '10.0.0.0/8', '10.0.0.0/99']", ["300.0.0.1", "10.0.0.0/99"]),
        (
            "cors_origins = ['app.example', 'https://a.example', 'https://a/b']",
            ["app.example", "https://a/b"],
        ),
        ("hubs = ['hub', 'https://hub.example/', 'ftp://x/']", ["\"hub\"", "ftp://x/"]),
    ] {
        let error = error(&format!("[server]\n{text}\n"));
        assert!(wrong.iter().all(|wrong| error.contains(wrong)), "{text}: {error}");
        assert!(error.contains("line 2, column "), "{text}: {error}");
    }
}

#[test]
fn a_byte_that_is_no_text_has_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let latin = b"[[feed]]\nid = 'aa'\ntitle = 'caf\xe9'\n";
    let main = file("latin.toml", latin);
    let including = file("towpath.toml", b"include = 'latin.toml'\n[server]\nthreads = 0\n");
    let error = |path: &Path| Config::load(Some(path)).unwrap_err().to_string();
    let place = "latin.toml: line 3, column 13: the byte 0xE9 is not UTF-8";
    assert!(error(&main).contains(place), "{}", error(&main));
    // The other errors are told with it.
    let both = error(&including);
    assert!(both.contains(place) && both.contains("threads must be at least 1"), "{both}");
}

#[test]
fn further_checks_are_told_with_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("towpath.toml");
    let sink = "[[sink]]\nname = 'a'\nfeeds = ['*']\ninto = 'dir:x'\n";
    std::fs::write(
        &path,
        format!("[server]\nthreads = 0\n{sink}{}", sink.replace("'a'", "'b'").replace("dir:x", "dir:y")),
    )
    .unwrap();
    let check = |config: &Config| {
        let error = |index: usize| ValueError {
            table: "sink",
            index,
            subject: format!("sink {:?}: ", config.sinks[index].name),
            key: "into",
            message: "it is full".into(),
        };
        vec![error(0), error(1)]
    };
    let error = Config::load_checked(Some(&path), &check).unwrap_err().to_string();
    for part in [
        "3 errors",
        "line 2, column 11: ",
        "line 6, column 8: sink \"a\": it is full",
        "line 10, column 8: sink \"b\"",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// `towpath reload` finds the server by it, and must not look into another folder than the server has.
#[test]
fn the_data_folder_is_read_without_the_rest() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("more.toml"), "[server]\ndata = 'included'\n").unwrap();
    let path = place.path().join("towpath.toml");
    let read = |text: &str, variable: Option<&str>| {
        let environment = |name: &str| match (name, variable) {
            ("TOWPATH_SERVER_DATA", Some(value)) => Ok(value.to_owned()),
            ("PLACE", _) => Ok("elsewhere".to_owned()),
            _ => Err(std::env::VarError::NotPresent),
        };
        let folder = folder_of(&path);
        let quickly = ConfigSource::new(text, &path, &folder, &environment).data_folder(&folder);
        (quickly, Config::parse_with(text, &path, &environment).ok().map(|config| config.server.data))
    };
    for (text, variable, wanted) in [
        ("", None, "data"),
        ("[server]\nwaiters = 5\n[[feed]]\nid = 'aa'\n", None, "data"),
        ("[server]\ndata = 'here'\n", None, "here"),
        ("server.data = '/srv/towpath'\n", None, "/srv/towpath"),
        ("[server]\ndata = '/var/${PLACE}'\n", None, "/var/elsewhere"),
        ("include = 'more.toml'\n", None, "included"),
        ("[server]\ndata = 'here'\n", Some("variable"), "variable"),
    ] {
        let wanted = Some(place.path().join(wanted));
        assert_eq!(read(text, variable), (wanted.clone(), wanted), "{text}");
    }
    // What is told by the whole reading. A mistake elsewhere leaves the folder known.
    for text in
        ["[server", "[server]\ndata = 5\n", "[server]\ndata = '${MISSING}'\n", "include = 'none.toml'\n"]
    {
        assert_eq!(read(text, None), (None, None), "{text}");
    }
    let wrong = "[[feed]]\nid = 5\n";
    assert_eq!(read(wrong, None), (Some(place.path().join("data")), None));
}
